"""Decision records in Redis: one JSON string a request and a capped list of the newest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from redis.asyncio import Redis

_RECORD = "shoal:decision:"
_NEWEST = "shoal:decisions"
# A record is for finding out why; a day later nobody asks.
TTL_S = 24 * 3600
MAX_LISTED = 10_000


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """A rendered decision record and what it is listed by."""

    request_id: str
    device_id: str
    model: str
    json_text: str


class DecisionStore:
    """Writes batches, reads single records and the newest."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    async def append(self, decisions: Sequence[StoredDecision]) -> None:
        """Write all in one round trip; raises redis.RedisError."""
        pipeline = self._client.pipeline(transaction=False)
        for decision in decisions:
            pipeline.set(_RECORD + decision.request_id, decision.json_text, ex=TTL_S)
            listed = {
                "id": decision.request_id,
                "device": decision.device_id,
                "model": decision.model,
            }
            pipeline.xadd(_NEWEST, cast(Any, listed), maxlen=MAX_LISTED, approximate=True)
        await pipeline.execute()

    async def get(self, request_id: str) -> str | None:
        """The JSON text of one record; None when unknown or older than a day."""
        return cast(str | None, await self._client.get(_RECORD + request_id))

    async def newest(self, limit: int, device_id: str = "") -> list[str]:
        """JSON texts, newest first; with `device_id` only of requests placed there last."""
        count = MAX_LISTED if device_id else limit
        rows = cast(
            list[tuple[str, dict[str, str]]],
            await self._client.xrevrange(_NEWEST, count=count),
        )
        ids = [row["id"] for _, row in rows if device_id in ("", row["device"])][:limit]
        if not ids:
            return []
        texts = await self._client.mget([_RECORD + request_id for request_id in ids])
        return [cast(str, text) for text in texts if text is not None]
