"""The rollout that runs, or the last one, in Redis; every hub and gateway reads the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

from redis.asyncio import Redis

from orchestrator.fleet.view import DeviceId
from orchestrator.rollout.model import Outcome, Rollout, Target, rollout_from, target_from, to_json

_ROLLOUT = "shoal:rollout"
_TARGETS = "shoal:rollout:devices"
_CANCELLED = "shoal:rollout:cancelled"
_LEADER = "shoal:rollout:leader"
LEADER_LEASE_MS = 10_000

# KEYS: rollout, devices. ARGV: rollout, then device id and target in turn.
_BEGIN = """
local known = redis.call('GET', KEYS[1])
if known and cjson.decode(known).outcome == 'running' then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
return 1
"""
# Writes of one rollout never reach the next. KEYS as above. ARGV: id of the rollout, then as above.
_PUT = """
local known = redis.call('GET', KEYS[1])
if not known or cjson.decode(known).id ~= ARGV[1] then return 0 end
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
return 1
"""


# KEYS: rollout. ARGV: id of the rollout, the rollout.
_END = """
local known = redis.call('GET', KEYS[1])
if not known or cjson.decode(known).id ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""


class RolloutStore:
    """`client` must decode responses. Every call raises redis.RedisError."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._begin = client.register_script(_BEGIN)
        self._put = client.register_script(_PUT)
        self._end = client.register_script(_END)

    async def begin(self, rollout: Rollout, targets: Iterable[Target]) -> bool:
        """Start it in the place of the last; False when one is running."""
        args = [to_json(rollout), *_rows(targets)]
        return bool(await self._begin(keys=[_ROLLOUT, _TARGETS], args=args))

    async def last(self) -> Rollout | None:
        """The one that runs, else the last; None: there was none."""
        text, cancelled = cast(list[str | None], await self._client.mget(_ROLLOUT, _CANCELLED))
        if text is None:
            return None
        rollout = rollout_from(text)
        return replace(rollout, cancelled=cancelled == rollout.id)

    async def running(self) -> Rollout | None:
        """The one that runs."""
        rollout = await self.last()
        return rollout if rollout is not None and rollout.outcome is Outcome.RUNNING else None

    async def targets(self) -> dict[DeviceId, Target]:
        """Of `last`."""
        rows = cast(dict[str, str], await cast(Any, self._client.hgetall(_TARGETS)))
        return {DeviceId(key): target_from(text) for key, text in rows.items()}

    async def put(self, rollout: Rollout, targets: Iterable[Target]) -> bool:
        """How far devices are; False, and nothing changed, when another rollout came."""
        args = [rollout.id, *_rows(targets)]
        return bool(await self._put(keys=[_ROLLOUT, _TARGETS], args=args))

    async def end(self, rollout: Rollout) -> bool:
        """Its outcome, by the hub that leads; False, and nothing changed, as for `put`."""
        return bool(await self._end(keys=[_ROLLOUT], args=[rollout.id, to_json(rollout)]))

    async def cancel(self, rollout_id: str) -> None:
        """Open no more batches of it; what is under way goes on."""
        await self._client.set(_CANCELLED, rollout_id)

    async def may_lead(self, hub_id: str) -> bool:
        """Whether this hub opens the batches; one at a time does."""
        await self._client.set(_LEADER, hub_id, px=LEADER_LEASE_MS, nx=True)
        if await self._client.get(_LEADER) != hub_id:
            return False
        await self._client.pexpire(_LEADER, LEADER_LEASE_MS)
        return True


def _rows(targets: Iterable[Target]) -> list[str]:
    return [text for each in targets for text in (str(each.device_id), to_json(each))]
