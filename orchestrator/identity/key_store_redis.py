"""API keys in Redis: `shoal:key:<sha256 of the key>`; the key itself is not stored.

A revoked key's row stays: its file, where it has one, must not bring it back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from redis.asyncio import Redis

from orchestrator.identity.api_keys import (
    ID_CHARS,
    Principal,
    Role,
    check_key,
    check_label,
    hash_of,
    key_id_of,
    new_key,
    unknown_key,
)

_KEY = "shoal:key:"
_ID = re.compile(rf"[0-9a-f]{{{ID_CHARS}}}")
_SCAN_COUNT = 1_000


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A key as its owner may see it again; `revoked_unix_ms` None: it is valid."""

    key_id: str
    tenant: str
    name: str
    role: Role
    created_unix_ms: int
    revoked_unix_ms: int | None


class KeyStore:
    """Makes, checks and removes API keys; `client` must decode responses."""

    def __init__(
        self, client: Redis, unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self._client = client
        self._unix_ms = unix_ms

    async def create(self, tenant: str, name: str, role: Role) -> str:
        """A new key's text, the only time it is known; raises INVALID_ARGUMENT for a bad name."""
        key = new_key()
        await self.put(key, tenant, name, role)
        return key

    async def put(self, key: str, tenant: str, name: str, role: Role) -> None:
        """Make a key known that was made before (one kept in a file, Redis being empty again)."""
        check_key(key)
        await self._client.hset(
            _KEY + hash_of(key),
            mapping={
                "tenant": check_label("tenant", tenant),
                "name": check_label("name", name),
                "role": role.value,
                "created_unix_ms": str(self._unix_ms()),
            },
        )

    async def authenticate(self, key: str | None) -> Principal:
        """Whom the key stands for; raises UNAUTHENTICATED. One Redis round trip.

        The look-up is by hash: no comparison whose time depends on a secret's prefix.
        """
        key = check_key(key)
        fields = cast(dict[str, str], await self._client.hgetall(_KEY + hash_of(key)))
        if not fields or fields.get("revoked_unix_ms"):
            raise unknown_key()
        return Principal(
            tenant=fields["tenant"],
            name=fields["name"],
            role=Role(fields["role"]),
            key_id=key_id_of(key),
        )

    async def list(self) -> Sequence[KeyEntry]:
        """All keys, the oldest first, with those that were revoked."""
        # A scan may tell a name twice.
        names = {name async for name in self._client.scan_iter(f"{_KEY}*", _SCAN_COUNT)}
        pipeline = self._client.pipeline(transaction=False)
        for name in names:
            pipeline.hgetall(name)
        rows = await pipeline.execute()
        entries = [_entry(name, row) for name, row in zip(names, rows, strict=True) if row]
        return sorted(entries, key=lambda each: (each.created_unix_ms, each.key_id))

    async def revoke(self, key_id: str) -> KeyEntry | None:
        """Refuse a key from now on; None when there is no such key. Again: changes nothing."""
        if _ID.fullmatch(key_id) is None:
            return None
        async for name in self._client.scan_iter(f"{_KEY}{key_id}*", _SCAN_COUNT):
            await self._client.hsetnx(name, "revoked_unix_ms", str(self._unix_ms()))
            return _entry(name, cast(dict[str, str], await self._client.hgetall(name)))
        return None

    async def is_revoked(self, key: str) -> bool:
        """Whether the key was revoked."""
        return bool(await self._client.hexists(_KEY + hash_of(key), "revoked_unix_ms"))


def _entry(name: str, row: dict[str, str]) -> KeyEntry:
    revoked = row.get("revoked_unix_ms")
    return KeyEntry(
        name.removeprefix(_KEY)[:ID_CHARS],
        row["tenant"],
        row["name"],
        Role(row["role"]),
        int(row["created_unix_ms"]),
        int(revoked) if revoked else None,
    )
