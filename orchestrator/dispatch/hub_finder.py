"""Keeps a gateway's links in step with the hubs that the fleet has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from orchestrator.dispatch.edge import EdgeBackend
from orchestrator.dispatch.hub_link import HubLink
from orchestrator.fleet.hubs_redis import HubDirectory, HubEntry
from orchestrator.fleet.registry import Registry
from orchestrator.fleet.registry_redis import StateError
from orchestrator.fleet.view import DeviceId
from shoal.tasks import cancelled

_log = structlog.get_logger(__name__)

INTERVAL_S = 2.0


class HubFinder:
    """Reads the fleet's list of hubs every two seconds; without Redis the last one counts.

    A link that was configured stays until the list names other hubs. A connected one is
    never dropped: the hub lives, whatever the list says.
    """

    def __init__(
        self, edge: EdgeBackend, directory: HubDirectory, make_link: Callable[[str], HubLink]
    ) -> None:
        self._edge = edge
        self._directory = directory
        self._make_link = make_link
        self._hubs: dict[str, HubEntry] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; must be called in the event loop that the links live in."""
        self._task = asyncio.create_task(self._follow(), name="hub-finder")

    async def stop(self) -> None:
        """End; the links stay as they are."""
        if self._task is not None:
            await cancelled([self._task])

    def hubs_to_dial(self) -> list[HubEntry]:
        """Where a device may go: all that live, those that answer this gateway first."""
        up = {link.address for link in self._edge.links if link.connected}
        return sorted(self._hubs.values(), key=lambda hub: hub.inner not in up)

    async def _follow(self) -> None:
        while True:
            try:
                hubs = await self._directory.hubs()
            except StateError as error:
                _log.warning("hubs_not_listed", error=str(error))
            else:
                if hubs:
                    self._hubs = {hub.inner: hub for hub in hubs}
                    await self._keep_to(self._hubs)
            await asyncio.sleep(INTERVAL_S)

    async def _keep_to(self, hubs: dict[str, HubEntry]) -> None:
        links = self._edge.links
        for link in [each for each in links if each.address not in hubs and not each.connected]:
            links.remove(link)
            _log.info("hub_gone", hub=link.address)
            await link.stop()
        for address in hubs.keys() - {link.address for link in links}:
            link = self._make_link(address)
            links.append(link)
            link.start()


class DeviceOwners:
    """Which hub a device is connected to, by the registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def hub_of(self, device: str) -> str:
        """Id of the hub of the device (id or name); empty: none, or not known now."""
        try:
            entry = await self._registry.get(DeviceId(device))
            entry = entry or await self._registry.find_by_name(device)
        except StateError as error:
            _log.warning("device_not_looked_up", error=str(error))
            return ""
        return "" if entry is None else entry.hub
