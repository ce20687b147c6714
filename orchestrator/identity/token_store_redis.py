"""Join tokens in Redis: `shoal:token:<id>` holds the secret's hash, never the secret."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

from redis.asyncio import Redis

from orchestrator.identity.join_tokens import (
    JoinToken,
    expired_token,
    unknown_token,
    used_token,
)
from shoal.errors import invalid

_TOKEN = "shoal:token:"  # noqa: S105 - a key prefix

DEFAULT_TTL_S = 3600
MAX_TTL_S = 30 * 86_400
# Kept past its end, so that a late device hears "expired" or "used" and not "unknown".
_KEPT_AFTER_EXPIRY_S = 7 * 86_400

# KEYS: token. ARGV: now in Unix ms, device id. One of any number of racers gets 'ok'.
_CONSUME = """
local row = redis.call('HMGET', KEYS[1], 'expires_unix_ms', 'used_by')
if not row[1] then return 'unknown' end
if row[2] and row[2] ~= '' then return 'used' end
if tonumber(ARGV[1]) >= tonumber(row[1]) then return 'expired' end
redis.call('HSET', KEYS[1], 'used_by', ARGV[2])
return 'ok'
"""
# KEYS: token. ARGV: device id.
_RELEASE = """
if redis.call('HGET', KEYS[1], 'used_by') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'used_by', '')
return 1
"""
_FAULTS = {"unknown": unknown_token, "used": used_token, "expired": expired_token}


class TokenStore:
    """Makes and consumes join tokens of the fleet whose CA has `ca_sha256`.

    `client` must decode responses; `unix_ms` is the clock.
    """

    def __init__(
        self,
        client: Redis,
        ca_sha256: str,
        unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._client = client
        self._ca_sha256 = ca_sha256
        self._unix_ms = unix_ms
        self._consume = client.register_script(_CONSUME)
        self._release = client.register_script(_RELEASE)

    async def create(self, ttl_s: int = DEFAULT_TTL_S) -> str:
        """A new token's text, the only time it is known; raises INVALID_ARGUMENT for `ttl_s`."""
        if not 0 < ttl_s <= MAX_TTL_S:
            raise invalid("ttl_s", f"ttl_s must be from 1 to {MAX_TTL_S} seconds (30 days)")
        token = JoinToken.new(self._ca_sha256)
        now_unix_ms = self._unix_ms()
        key = _TOKEN + token.token_id
        pipeline = self._client.pipeline(transaction=True)
        pipeline.hset(
            key,
            mapping={
                "secret_sha256": token.secret_sha256,
                "created_unix_ms": str(now_unix_ms),
                "expires_unix_ms": str(now_unix_ms + ttl_s * 1000),
                "used_by": "",
            },
        )
        pipeline.expire(key, ttl_s + _KEPT_AFTER_EXPIRY_S)
        await pipeline.execute()
        return token.text

    async def check(self, token_text: str) -> JoinToken:
        """The token, if it may enrol a device now; consumes nothing.

        Raises UNAUTHENTICATED with a message of its own for an empty, malformed, foreign,
        used or expired token.
        """
        token = JoinToken.parse(token_text)
        stored = cast(dict[str, str], await self._client.hgetall(_TOKEN + token.token_id))
        token.check(stored, self._ca_sha256, self._unix_ms())
        return token

    async def consume(self, token_text: str, device_id: str) -> None:
        """Use the token up for the device, atomically; raises as `check` does."""
        token = await self.check(token_text)
        verdict = await self._consume(
            keys=[_TOKEN + token.token_id], args=[str(self._unix_ms()), device_id]
        )
        fault = _FAULTS.get(verdict)
        if fault is not None:
            raise fault()

    async def release(self, token_text: str, device_id: str) -> None:
        """Undo `consume` of this device, when its enrolment failed after it."""
        token = JoinToken.parse(token_text)
        await self._release(keys=[_TOKEN + token.token_id], args=[device_id])
