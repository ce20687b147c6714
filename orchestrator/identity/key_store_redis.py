"""API keys in Redis: `shoal:key:<sha256 of the key>`; the key itself is not stored."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

from redis.asyncio import Redis

from orchestrator.identity.api_keys import (
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
        if not fields:
            raise unknown_key()
        return Principal(
            tenant=fields["tenant"],
            name=fields["name"],
            role=Role(fields["role"]),
            key_id=key_id_of(key),
        )

    async def remove(self, key: str) -> bool:
        """Forget a key; False when it was not known."""
        return bool(await self._client.delete(_KEY + hash_of(key)))
