"""Authenticated encryption of blocks at rest: disk and shared tier alike.

AES-256-GCM under a key of the tenant alone, bound to the block's hash and the
model's KV geometry. A flipped bit, a cut, another block's bytes, another
tenant's or another fleet's key: each is an error here and never reaches the engine.
"""

from __future__ import annotations

import array
import secrets
import struct
import sys
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from agent.kv.codec import Block
from agent.kv.layout import Geometry
from shoal.blocks import BLOCK_TOKENS, BlockHash

_HEAD = struct.Struct("<4sB3x12s")  # magic, version, nonce
_MAGIC = b"SHKV"
_VERSION = 1
_TAG_BYTES = 16
OVERHEAD_BYTES = _HEAD.size + _TAG_BYTES
_TOKEN_BYTES = 4
# What the parts of a partial block's file are bound to beside its name.
_TOKENS_PART, _ROWS_PART = b"tokens", b"rows"


class SealError(Exception):
    """A sealed block is damaged, foreign or under another key; recompute it."""


class Sealer:
    """Seals and opens blocks of one model for every tenant.

    `secret`: at least 16 bytes, the same on every agent that shares blocks.
    Safe to call from several threads.
    """

    def __init__(self, secret: bytes, geometry: Geometry) -> None:
        if len(secret) < 16:
            raise ValueError("the sealing secret needs at least 16 bytes")
        self._secret = secret
        self._geometry = geometry
        self._bound_to = _MAGIC + bytes([_VERSION]) + geometry.digest()
        self._cipher = lru_cache(maxsize=1024)(self._make_cipher)

    @property
    def sealed_bytes(self) -> int:
        """Size of every sealed block of this model."""
        return self._geometry.block_bytes + OVERHEAD_BYTES

    def seal(self, tenant_salt: bytes, block_hash: BlockHash, block: Block) -> bytes:
        """The block as it is stored."""
        return self._seal(tenant_salt, block_hash, block.data)

    def open(self, tenant_salt: bytes, block_hash: BlockHash, sealed: bytes | memoryview) -> Block:
        """The block, proved to be the one that was sealed; raises SealError."""
        if len(sealed) != self.sealed_bytes:
            raise SealError(f"{len(sealed)} bytes, not {self.sealed_bytes}")
        return np.frombuffer(self._open(tenant_salt, block_hash, sealed), dtype=np.uint8)

    def head_bytes(self, num_tokens: int) -> int:
        """Size of the first part, the tokens, of a partial block's file."""
        return OVERHEAD_BYTES + _TOKEN_BYTES * num_tokens

    def tail_bytes(self, num_tokens: int) -> int:
        """Size of the file of a partial block with so many tokens."""
        rows_bytes = OVERHEAD_BYTES + self._geometry.bytes_per_token * num_tokens
        return self.head_bytes(num_tokens) + rows_bytes

    def tail_tokens(self, num_bytes: int) -> int | None:
        """How many tokens a partial block's file of this size has; None: it is no such file."""
        bytes_each = _TOKEN_BYTES + self._geometry.bytes_per_token
        num_tokens, left = divmod(num_bytes - 2 * OVERHEAD_BYTES, bytes_each)
        return num_tokens if left == 0 and 0 < num_tokens < BLOCK_TOKENS else None

    def seal_tail(
        self, tenant_salt: bytes, name: BlockHash, tokens: Sequence[int], rows: Block
    ) -> bytes:
        """A partial block's file: its tokens, then its rows."""
        head = _swapped(array.array("I", tokens)).tobytes()
        return self._seal(tenant_salt, name + _TOKENS_PART, head) + self._seal(
            tenant_salt, name + _ROWS_PART, rows.data
        )

    def open_tokens(self, tenant_salt: bytes, name: BlockHash, head: bytes) -> array.array[int]:
        """The tokens in the first part of a partial block's file; raises SealError."""
        tokens = array.array("I")
        tokens.frombytes(self._open(tenant_salt, name + _TOKENS_PART, head))
        return _swapped(tokens)

    def open_rows(self, tenant_salt: bytes, name: BlockHash, sealed: bytes) -> Block:
        """The rows in a partial block's whole file; raises SealError."""
        num_tokens = self.tail_tokens(len(sealed))
        if num_tokens is None:
            raise SealError(f"{len(sealed)} bytes are no partial block")
        rows = memoryview(sealed)[self.head_bytes(num_tokens) :]
        opened = self._open(tenant_salt, name + _ROWS_PART, rows)
        return np.frombuffer(opened, dtype=np.uint8)

    def _seal(self, tenant_salt: bytes, name: bytes, data: bytes | memoryview) -> bytes:
        nonce = secrets.token_bytes(12)
        sealed = self._cipher(tenant_salt).encrypt(nonce, data, self._bound_to + name)
        return _HEAD.pack(_MAGIC, _VERSION, nonce) + sealed

    def _open(self, tenant_salt: bytes, name: bytes, sealed: bytes | memoryview) -> bytes:
        if len(sealed) < OVERHEAD_BYTES:
            raise SealError(f"{len(sealed)} bytes are too few")
        magic, version, nonce = _HEAD.unpack_from(sealed)
        if (magic, version) != (_MAGIC, _VERSION) or any(sealed[5:8]):
            raise SealError("not a sealed block of this version")
        try:
            return self._cipher(tenant_salt).decrypt(
                nonce, memoryview(sealed)[_HEAD.size :], self._bound_to + name
            )
        except InvalidTag:
            raise SealError("authentication failed") from None

    def _make_cipher(self, tenant_salt: bytes) -> AESGCM:
        kdf = HKDF(algorithm=SHA256(), length=32, salt=tenant_salt, info=b"shoal kv block v1")
        return AESGCM(kdf.derive(self._secret))


def _swapped(tokens: array.array[int]) -> array.array[int]:
    """To or from little endian."""
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens
