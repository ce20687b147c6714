"""Tenants' policies in Redis (`shoal:tenant:<name>`) and what they spent.

Counters are hashes `shoal:spent:<tenant>:<day or month>` of `tokens` and `nanos`. A
reservation is counted as spent at once and corrected when the answer has ended: what a
gateway that dies never settles stays counted, so a budget errs to the tenant's cost
and never the other way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from redis.asyncio import Redis

from orchestrator.identity.api_keys import check_label
from orchestrator.identity.tenants import (
    Period,
    TenantPolicy,
    day_of,
    month_of,
    policy_fields,
    policy_from,
)

_TENANT = "shoal:tenant:"
_SPENT = "shoal:spent:"
_NAMES = "shoal:tenants"
# Counters outlive their period by this, for a look back.
_KEPT_S = 40 * 24 * 3600

# KEYS: policy, day, month. ARGV: tokens, nanos (empty: price unknown), end of day and month.
# The limits are read in the same step in which the counters grow. Lua keeps
# whole numbers exact to 2^53: nine million units of money.
_RESERVE = """
local limits = redis.call('HMGET', KEYS[1],
    'tokens_per_day', 'tokens_per_month', 'nanos_per_day', 'nanos_per_month')
local wanted = {tokens = ARGV[1], nanos = ARGV[2]}
local function passes(limit, key, field)
    if not limit then return true end
    if wanted[field] == '' then return false end
    local spent = tonumber(redis.call('HGET', key, field) or '0')
    return spent + tonumber(wanted[field]) <= tonumber(limit)
end
if not passes(limits[1], KEYS[2], 'tokens') then return 'tokens_per_day' end
if not passes(limits[2], KEYS[3], 'tokens') then return 'tokens_per_month' end
if not passes(limits[3], KEYS[2], 'nanos') then return 'money_per_day' end
if not passes(limits[4], KEYS[3], 'nanos') then return 'money_per_month' end
for i = 2, 3 do
    redis.call('HINCRBY', KEYS[i], 'tokens', ARGV[1])
    if ARGV[2] ~= '' then redis.call('HINCRBY', KEYS[i], 'nanos', ARGV[2]) end
    redis.call('EXPIREAT', KEYS[i], ARGV[i + 1])
end
return ''
"""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What was set aside for one request; `nanos` None: the price is not known."""

    tenant: str
    day: Period
    month: Period
    tokens: int
    nanos: int | None


@dataclass(frozen=True, slots=True)
class BudgetRefusal:
    """The budget that a request would pass: its name, and when it begins anew."""

    budget: str
    ends_unix_s: int


class TenantStore:
    """Reads and writes policies; counts what is spent. `client` must decode responses."""

    def __init__(self, client: Redis, unix_s: Callable[[], float] = time.time) -> None:
        self._client = client
        self._unix_s = unix_s
        self._reserve = client.register_script(_RESERVE)

    async def policy(self, tenant: str) -> TenantPolicy | None:
        """The tenant's policy; None: it has none. Raises redis.RedisError."""
        fields = cast(dict[str, str], await self._client.hgetall(_TENANT + tenant))
        return policy_from(fields)

    async def put(self, tenant: str, policy: TenantPolicy) -> None:
        """Set the policy in the place of any other; INVALID_ARGUMENT for a bad name."""
        key = _TENANT + check_label("tenant", tenant)
        pipeline = self._client.pipeline(transaction=True)
        pipeline.delete(key)
        pipeline.hset(key, mapping=cast(Any, policy_fields(policy)))
        pipeline.sadd(_NAMES, tenant)
        await pipeline.execute()

    async def names(self) -> list[str]:
        """Tenants that have a policy."""
        return sorted(cast(set[str], await self._client.smembers(_NAMES)))

    async def reserve(
        self, tenant: str, tokens: int, nanos: int | None
    ) -> Reservation | BudgetRefusal:
        """Set tokens and money aside, atomically against all of the tenant's budgets.

        Raises redis.RedisError when it cannot be known: then nothing may be spent.
        """
        day, month = day_of(self._unix_s()), month_of(self._unix_s())
        refused = await self._reserve(
            keys=[_TENANT + tenant, _counter(tenant, day), _counter(tenant, month)],
            args=[
                tokens,
                "" if nanos is None else nanos,
                day.ends_unix_s + _KEPT_S,
                month.ends_unix_s + _KEPT_S,
            ],
        )
        if refused:
            period = day if refused.endswith("day") else month
            return BudgetRefusal(refused, period.ends_unix_s)
        return Reservation(tenant, day, month, tokens, nanos)

    async def settle(self, reserved: Reservation, tokens: int, nanos: int | None) -> None:
        """Put what was really spent in the place of what was reserved; raises redis.RedisError."""
        pipeline = self._client.pipeline(transaction=True)
        for period in (reserved.day, reserved.month):
            key = _counter(reserved.tenant, period)
            pipeline.hincrby(key, "tokens", tokens - reserved.tokens)
            pipeline.hincrby(key, "nanos", (nanos or 0) - (reserved.nanos or 0))
            pipeline.expireat(key, period.ends_unix_s + _KEPT_S)
        await pipeline.execute()

    async def spent(self, tenant: str) -> dict[str, int]:
        """Tokens and nanos of the running day and month, by the names of the budgets."""
        now_s = self._unix_s()
        totals: dict[str, int] = {}
        for name, period in (("day", day_of(now_s)), ("month", month_of(now_s))):
            row = cast(dict[str, str], await self._client.hgetall(_counter(tenant, period)))
            totals[f"tokens_per_{name}"] = int(row.get("tokens", 0))
            totals[f"nanos_per_{name}"] = int(row.get("nanos", 0))
        return totals


def _counter(tenant: str, period: Period) -> str:
    return f"{_SPENT}{tenant}:{period.name}"
