"""Keeps the devices' users in the cache Redis, each limited to its keyspace."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import redis.asyncio
import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from orchestrator.config import CacheAccess
from orchestrator.identity.cache_users import CacheLogin, cache_login
from orchestrator.identity.key_files import read_private
from shoal.blocks import SHARED_TIER_ADMIN, shared_tier_acl

log = structlog.get_logger()

_TIMEOUT_S = 2.0


class CacheUsers:
    """Grants and withdraws access to the shared blocks. A cache that is away delays nobody.

    The cache is a convenience: a device without it computes what it would fetch.
    """

    def __init__(self, access: CacheAccess) -> None:
        """Raises KeyFileError when a secret is missing or open to others."""
        self._access = access
        self._key = read_private(access.key_file)
        tls: dict[str, Any] = {}
        if access.ca_file is not None:
            tls = {"ssl_ca_certs": str(access.ca_file)}
        self._client: redis.asyncio.Redis = redis.asyncio.Redis.from_url(
            access.admin_url,
            **tls,
            username=SHARED_TIER_ADMIN,
            password=read_private(access.admin_password_file).decode().strip(),
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )

    async def grant(self, device_id: str) -> CacheLogin | None:
        """The device's login, known to Redis now; None (and logged) when Redis is away."""
        login = self._login(device_id)
        rules = shared_tier_acl(login.user, login.password_sha256)
        if not await self._acl("SETUSER", *rules):
            return None
        return login

    def digest(self, device_id: str) -> bytes:
        """Of what `grant` would tell the device."""
        return self._login(device_id).digest

    async def withdraw(self, device_id: str) -> None:
        """Remove the device's user and cut its connections; a failure is logged."""
        await self._acl("DELUSER", self._login(device_id).user)

    async def close(self) -> None:
        """Disconnect."""
        await self._client.aclose()

    def _login(self, device_id: str) -> CacheLogin:
        return replace(
            cache_login(self._key, self._access.device_url, device_id),
            share_policy=self._access.share_policy,
            write_bytes_per_s=self._access.write_bytes_per_s,
        )

    async def _acl(self, *command: str) -> bool:
        try:
            await self._client.execute_command("ACL", *command)  # type: ignore[no-untyped-call]
            with suppress(ResponseError):  # a Redis without an ACL file keeps users in memory
                await self._client.execute_command("ACL", "SAVE")  # type: ignore[no-untyped-call]
        except (RedisError, OSError) as error:
            log.warning("cache_users_unreachable", error=type(error).__name__)
            return False
        return True
