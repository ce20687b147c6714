"""Which hubs a fleet has, in Redis: `shoal:hub:<id>`, gone when its hub no longer renews it.

Gateways and devices learn from it where hubs are, also those that were added or that
another node took over.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import cast

from redis.asyncio import Redis

_HUB = "shoal:hub:"
_IDS = "shoal:hubs"
# A hub announces itself every two seconds; a fifth miss, and it is gone.
ANNOUNCE_INTERVAL_S = 2.0
TTL_MS = 10_000


@dataclass(frozen=True, slots=True)
class HubEntry:
    """One hub; addresses are `host:port` to dial.

    `inner`: for gateways. `link` and `enrol`: for devices.
    """

    hub_id: str
    inner: str
    link: str
    enrol: str
    num_devices: int = 0


class HubDirectory:
    """Reads and writes the fleet's list of hubs; each call may raise redis.RedisError."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    async def announce(self, hub: HubEntry) -> None:
        """Say that the hub lives; good for ten seconds."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.set(_HUB + hub.hub_id, json.dumps(asdict(hub)), px=TTL_MS)
        pipeline.sadd(_IDS, hub.hub_id)
        await pipeline.execute()

    async def withdraw(self, hub_id: str) -> None:
        """The hub stops in good order; its devices stay listed as its own."""
        await self._client.delete(_HUB + hub_id)

    async def hubs(self) -> list[HubEntry]:
        """The living hubs, by id."""
        return [hub for hub in (await self._known()).values() if hub is not None]

    async def vanished(self) -> set[str]:
        """Ids of hubs that lived once and do not any more, until `bury`."""
        return {hub_id for hub_id, hub in (await self._known()).items() if hub is None}

    async def bury(self, hub_id: str) -> None:
        """Nothing is left to do about a hub that vanished."""
        await self._client.srem(_IDS, hub_id)

    async def _known(self) -> dict[str, HubEntry | None]:
        ids = sorted(cast(set[str], await self._client.smembers(_IDS)))
        if not ids:
            return {}
        texts = cast(list[str | None], await self._client.mget([_HUB + each for each in ids]))
        return {
            hub_id: None if text is None else HubEntry(**json.loads(text))
            for hub_id, text in zip(ids, texts, strict=True)
        }
