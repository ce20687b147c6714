"""Names of KV blocks: what the engine, the hub and the shared tier must agree on.

A block hash covers everything that decides the block's bytes: the tokens before
it (through its parent), its own tokens, the model, the KV types, the version of
the engine's state layout and the tenant. Two blocks with one hash hold the same
bytes; two tenants never share one.
"""

from __future__ import annotations

import array
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType

BlockHash = NewType("BlockHash", bytes)

# Tokens in a block, and the cut of every prefill (the article's block size).
BLOCK_TOKENS = 128
HASH_BYTES = 32

# Every key of the shared tier starts so; an agent's Redis user may touch no other.
SHARED_KEY_PREFIX = "shoal:kv:"

# Makes and removes agents' users there; its password stays with the orchestrator.
SHARED_TIER_ADMIN = "shoal-admin"

_SPACE_PERSON = b"shoal-kv-space-1"
_BLOCK_PERSON = b"shoal-kv-block-1"
_TENANT_PERSON = b"shoal-kv-tenant1"


@dataclass(frozen=True, slots=True)
class BlockSpace:
    """What decides a block's bytes beside the tokens; hashes of two spaces never meet."""

    model_fingerprint: str
    key_type: str
    value_type: str
    state_version: str
    tenant_salt: bytes

    def key(self) -> bytes:
        """The 32-byte key under which this space's blocks are hashed."""
        digest = hashlib.blake2b(digest_size=HASH_BYTES, person=_SPACE_PERSON)
        for field in (
            self.model_fingerprint.encode(),
            self.key_type.encode(),
            self.value_type.encode(),
            self.state_version.encode(),
            self.tenant_salt,
            BLOCK_TOKENS.to_bytes(4, "little"),
        ):
            # Lengths first, so that no two lists of fields read alike.
            digest.update(len(field).to_bytes(8, "little"))
            digest.update(field)
        return digest.digest()


def block_hashes(
    space: BlockSpace, tokens: Sequence[int], known: Sequence[BlockHash] = ()
) -> tuple[BlockHash, ...]:
    """Hashes of all full blocks of `tokens`, in order; a partial last block has none.

    `known` are the hashes of leading blocks computed before (a conversation that
    grew); they are trusted and not computed again. Raises OverflowError for a
    token id outside 0..2^32-1.
    """
    key = space.key()
    hashes = list(known[: len(tokens) // BLOCK_TOKENS])
    parent = hashes[-1] if hashes else BlockHash(bytes(HASH_BYTES))
    for start in range(len(hashes) * BLOCK_TOKENS, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        digest = hashlib.blake2b(parent, digest_size=HASH_BYTES, key=key, person=_BLOCK_PERSON)
        digest.update(_little_endian(tokens[start : start + BLOCK_TOKENS]))
        parent = BlockHash(digest.digest())
        hashes.append(parent)
    return tuple(hashes)


def tenant_salt(fleet_secret: bytes, tenant: str) -> bytes:
    """The salt that keeps one tenant's blocks apart; made where the API key is checked.

    `fleet_secret`: 16 to 64 bytes that never leave the fleet; without it nobody
    can compute a tenant's hashes. Raises ValueError for another length.
    """
    if not 16 <= len(fleet_secret) <= 64:
        raise ValueError("fleet_secret must have 16 to 64 bytes; make one with `secrets`")
    return hashlib.blake2b(
        tenant.encode(), digest_size=HASH_BYTES, key=fleet_secret, person=_TENANT_PERSON
    ).digest()


def shared_key(block: BlockHash) -> str:
    """The shared tier's key of a block."""
    return SHARED_KEY_PREFIX + block.hex()


def shared_tier_acl(user: str, password_sha256_hex: str) -> tuple[str, ...]:
    """Arguments of Redis `ACL SETUSER` for an agent: its keyspace, its four commands."""
    return (
        user,
        "reset",
        "on",
        f"#{password_sha256_hex}",
        f"~{SHARED_KEY_PREFIX}*",
        "+get",
        "+set",
        "+exists",
        "+ping",
    )


def _little_endian(tokens: Sequence[int]) -> bytes:
    packed = array.array("I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
