"""Authenticated encryption of blocks at rest: disk and shared tier alike.

AES-256-GCM under a key of the tenant alone, bound to the block's hash and the
model's KV geometry. A flipped bit, a cut, another block's bytes, another
tenant's or another fleet's key: each is an error here and never reaches the engine.
"""

from __future__ import annotations

import secrets
import struct
from functools import lru_cache

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from agent.kv.codec import Block
from agent.kv.layout import Geometry
from shoal.blocks import BlockHash

_HEAD = struct.Struct("<4sB3x12s")  # magic, version, nonce
_MAGIC = b"SHKV"
_VERSION = 1
_TAG_BYTES = 16
OVERHEAD_BYTES = _HEAD.size + _TAG_BYTES


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
        nonce = secrets.token_bytes(12)
        sealed = self._cipher(tenant_salt).encrypt(nonce, block.data, self._bound_to + block_hash)
        return _HEAD.pack(_MAGIC, _VERSION, nonce) + sealed

    def open(self, tenant_salt: bytes, block_hash: BlockHash, sealed: bytes | memoryview) -> Block:
        """The block, proved to be the one that was sealed; raises SealError."""
        if len(sealed) != self.sealed_bytes:
            raise SealError(f"{len(sealed)} bytes, not {self.sealed_bytes}")
        magic, version, nonce = _HEAD.unpack_from(sealed)
        if (magic, version) != (_MAGIC, _VERSION) or any(sealed[5:8]):
            raise SealError("not a sealed block of this version")
        try:
            opened = self._cipher(tenant_salt).decrypt(
                nonce, memoryview(sealed)[_HEAD.size :], self._bound_to + block_hash
            )
        except InvalidTag:
            raise SealError("authentication failed") from None
        return np.frombuffer(opened, dtype=np.uint8)

    def _make_cipher(self, tenant_salt: bytes) -> AESGCM:
        kdf = HKDF(algorithm=SHA256(), length=32, salt=tenant_salt, info=b"shoal kv block v1")
        return AESGCM(kdf.derive(self._secret))
