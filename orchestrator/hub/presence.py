"""Tells the fleet that this hub lives, and looks after devices of hubs that do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from orchestrator.fleet.hubs_redis import ANNOUNCE_INTERVAL_S, HubDirectory, HubEntry
from orchestrator.fleet.registry import Registry, StateReport
from orchestrator.fleet.registry_redis import StateError
from orchestrator.fleet.view import DeviceState

_log = structlog.get_logger()

_ALIVE = (DeviceState.READY, DeviceState.SUSPECT)
# A device of a dead hub dials another within seconds: look that often, and a lease later.
_BURIAL_ROUNDS = 5


class Presence:
    """This hub's entry in the fleet's list of hubs."""

    def __init__(
        self, directory: HubDirectory, registry: Registry, describe: Callable[[], HubEntry]
    ) -> None:
        self._directory = directory
        self._registry = registry
        self._describe = describe
        # Rounds since a hub was first missed.
        self._missed: dict[str, int] = {}

    async def announce_forever(self) -> None:
        """Announce, and mark devices down whose hub vanished and that came to no other."""
        while True:
            try:
                await self._directory.announce(self._describe())
                await self._look_after_vanished()
            except StateError as error:
                _log.warning("hub_not_announced", error=str(error))
            await asyncio.sleep(ANNOUNCE_INTERVAL_S)

    async def withdraw(self) -> None:
        """This hub stops in good order."""
        await self._directory.withdraw(self._describe().hub_id)

    async def _look_after_vanished(self) -> None:
        vanished = await self._directory.vanished()
        self._missed = {hub_id: self._missed.get(hub_id, 0) + 1 for hub_id in vanished}
        for hub_id, rounds in self._missed.items():
            if rounds >= _BURIAL_ROUNDS:
                await self._bury(hub_id)

    async def _bury(self, hub_id: str) -> None:
        """Idempotent: several hubs may do it at once."""
        reports = [
            StateReport(
                entry.device_id,
                DeviceState.DOWN,
                entry.epoch,
                entry.last_seen_unix_ms,
                entry.device_class,
            )
            for entry in await self._registry.list()
            if entry.hub == hub_id and entry.state in _ALIVE
        ]
        await self._registry.record_states(reports)
        await self._directory.bury(hub_id)
        _log.warning("hub_vanished", hub_id=hub_id, num_devices_lost=len(reports))
