"""Cascades in Redis: thresholds of tenants, and the confidences that they come from.

A sample is a few numbers; no text is kept, nor anything made from text. Lists are bounded
in number and age.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from redis.asyncio import Redis

_THRESHOLDS = "shoal:cascade:thresholds:"
_SAMPLES = "shoal:cascade:samples:"
MAX_SAMPLES = 5_000
_KEPT_S = 30 * 24 * 3600


class CascadeStore:
    """Reads and writes by tenant and policy. `client` must decode responses.

    Every method raises redis.RedisError.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client

    async def add_sample(self, tenant: str, policy: str, sample: Mapping[str, Any]) -> None:
        """Keep one sample, the newest first; beyond the bound the oldest is dropped."""
        key = f"{_SAMPLES}{tenant}:{policy}"
        pipeline = self._client.pipeline(transaction=False)
        pipeline.lpush(key, json.dumps(sample, separators=(",", ":")))
        pipeline.ltrim(key, 0, MAX_SAMPLES - 1)
        pipeline.expire(key, _KEPT_S)
        await pipeline.execute()

    async def samples(self, tenant: str, policy: str) -> list[dict[str, Any]]:
        """All that are kept, newest first."""
        rows = await cast(Any, self._client.lrange(f"{_SAMPLES}{tenant}:{policy}", 0, -1))
        return [json.loads(row) for row in rows]

    async def put_threshold(self, tenant: str, policy: str, values: Mapping[str, Any]) -> None:
        """Set what a calibration found, in the place of the one before."""
        text = json.dumps(values, separators=(",", ":"))
        await cast(Any, self._client.hset(_THRESHOLDS + tenant, policy, text))

    async def thresholds(self, tenant: str) -> dict[str, dict[str, Any]]:
        """What calibrations found, by policy."""
        rows = cast(dict[str, str], await cast(Any, self._client.hgetall(_THRESHOLDS + tenant)))
        return {policy: json.loads(text) for policy, text in rows.items()}
