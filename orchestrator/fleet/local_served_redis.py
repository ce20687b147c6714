"""What devices served on their own ports: sums and the newest reports, in Redis.

A report that was counted already is not counted again: the check and the sums are one
step in Redis. Counts and times only; no device ever tells words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from redis.asyncio import Redis

from orchestrator.fleet.view import DeviceId

_SUMS = "shoal:local:"
_NEWEST = "shoal:local-reports"
MAX_LISTED = 1_000
# ARGV: journal, sequence, report, then pairs of field and amount.
_COUNT = """
local field = 'journal:' .. ARGV[1]
local last = redis.call('HGET', KEYS[1], field)
if last and tonumber(last) >= tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], field, ARGV[2])
for i = 4, #ARGV, 2 do redis.call('HINCRBYFLOAT', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', '1000', '*', 'report', ARGV[3])
return 1
"""


@dataclass(frozen=True, slots=True)
class LocalReport:
    """One report of one device; `usages`: sums by name for each model."""

    device_id: DeviceId
    journal: str
    sequence: int
    usages: Mapping[str, Mapping[str, float]]
    received_unix_ms: int = 0

    def to_json(self) -> str:
        """As it is listed."""
        return json.dumps(
            {
                "device_id": self.device_id,
                "received_unix_ms": self.received_unix_ms,
                "models": {model: dict(usage) for model, usage in self.usages.items()},
            }
        )


# Points in time, which no sum is made of; a report keeps them.
_MOMENTS = frozenset({"first_unix_ms", "last_unix_ms"})


class LocalServedStore:
    """Adds reports and reads sums; every method raises redis.RedisError."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    async def add(self, report: LocalReport) -> bool:
        """Count the report; False when it was counted before."""
        amounts: list[str] = []
        for model, usage in report.usages.items():
            for name, amount in usage.items():
                if name not in _MOMENTS and amount:
                    amounts += [f"sum:{model}:{name}", repr(amount)]
        keys = (_SUMS + report.device_id, _NEWEST)
        arguments = (report.journal, str(report.sequence), report.to_json(), *amounts)
        counted = await cast(Any, self._client.eval(_COUNT, len(keys), *keys, *arguments))
        return bool(counted)

    async def sums(self, device_ids: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
        """By device and model; devices that reported nothing are left out."""
        pipeline = self._client.pipeline(transaction=False)
        for device_id in device_ids:
            pipeline.hgetall(_SUMS + device_id)
        found: dict[str, dict[str, dict[str, float]]] = {}
        for device_id, fields in zip(device_ids, await pipeline.execute(), strict=True):
            models: dict[str, dict[str, float]] = {}
            for field, amount in cast(Mapping[str, str], fields).items():
                kind, _, rest = field.partition(":")
                model, _, name = rest.rpartition(":")
                if kind == "sum":
                    models.setdefault(model, {})[name] = float(amount)
            if models:
                found[device_id] = models
        return found

    async def newest(self, limit: int) -> list[dict[str, Any]]:
        """Reports of all devices, newest first."""
        rows = cast(
            list[tuple[str, dict[str, str]]], await self._client.xrevrange(_NEWEST, count=limit)
        )
        return [json.loads(row["report"]) for _, row in rows]
