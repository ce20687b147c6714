"""Fleet for gateways: summaries of what can be served, devices, drain and removal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import grpc
import structlog

from orchestrator.fleet.registry import DeviceEntry, Registry
from orchestrator.fleet.registry_redis import StateError
from orchestrator.fleet.view import DeviceId, DeviceState
from orchestrator.fleet.view_store import ViewStore
from orchestrator.hub.devices import Devices
from orchestrator.hub.placement import Placement
from orchestrator.hub.roles import Role, require_role
from orchestrator.hub.summary import INTERVAL_S, Summaries
from orchestrator.identity.cache_users_redis import CacheUsers
from shoal.v1 import engine_pb2, fleet_pb2, fleet_pb2_grpc

_log = structlog.get_logger()

_NO_REGISTRY = "the fleet's registry (Redis) does not answer; nothing was changed, try again"


@dataclass(frozen=True, slots=True)
class FleetParts:
    """What FleetServicer answers from."""

    hub_id: str
    devices: Devices
    registry: Registry
    views: ViewStore
    placement: Placement
    summaries: Summaries
    cache_users: CacheUsers | None = None


class FleetServicer(fleet_pb2_grpc.FleetServicer):
    """What the hub knows of its devices, for gateways only."""

    def __init__(self, parts: FleetParts) -> None:
        self._hub_id = parts.hub_id
        self._devices = parts.devices
        self._registry = parts.registry
        self._views = parts.views
        self._placement = parts.placement
        self._summaries = parts.summaries
        self._cache_users = parts.cache_users
        self._listed: list[DeviceEntry] = []

    async def WatchSummary(
        self, request: fleet_pb2.WatchSummaryRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[fleet_pb2.HubSummary]:
        """The summary at once, then whenever it changed."""
        await require_role(context, Role.GATEWAY)
        sent: fleet_pb2.HubSummary | None = None
        while True:
            summary = self._summaries.current(asyncio.get_running_loop().time())
            if summary is not sent:
                yield summary
                sent = summary
            await asyncio.sleep(INTERVAL_S)

    async def ListDevices(
        self, request: fleet_pb2.ListDevicesRequest, context: grpc.aio.ServicerContext
    ) -> fleet_pb2.ListDevicesReply:
        """All enrolled devices that were not removed, connected or not, by name."""
        await require_role(context, Role.GATEWAY)
        try:
            self._listed = await self._registry.list()
        except StateError as error:
            # Who is a member changes rarely: what was listed last serves while Redis is away.
            _log.warning("registry_unavailable", error=str(error))
        members = [
            entry
            for entry in self._listed
            if not entry.revoked
            and self._devices.state_of(entry.device_id) is not DeviceState.REVOKED
        ]
        members.sort(key=lambda entry: entry.name)
        return fleet_pb2.ListDevicesReply(devices=[self._status(entry) for entry in members])

    def _status(self, entry: DeviceEntry) -> fleet_pb2.DeviceStatus:
        state = self._devices.state_of(entry.device_id) or entry.state
        connection = self._devices.connection_of(entry.device_id)
        status = fleet_pb2.DeviceStatus(
            device_id=entry.device_id,
            name=entry.name,
            state=state.value,
            last_seen_unix_ms=entry.last_seen_unix_ms,
            epoch=entry.epoch,
            in_flight=self._views.in_flight(entry.device_id),
            hub_id=self._hub_id if connection is not None else entry.hub,
        )
        if connection is None:
            if state is DeviceState.READY:
                # By the registry; the hub that has it, if one does, says so itself.
                status.state = DeviceState.SUSPECT.value
            status.capabilities.device_class = entry.device_class
            return status
        status.capabilities.CopyFrom(connection.capabilities)
        status.load.CopyFrom(connection.load)
        status.last_seen_unix_ms = connection.last_seen_unix_ms
        status.epoch = connection.epoch
        status.agent_version = connection.agent_version
        status.protocol = connection.protocol
        status.installation.CopyFrom(connection.installation)
        status.upgrade.CopyFrom(connection.upgrade)
        status.clock_skew_ms = connection.clock_skew_ms
        status.certificate_expires_unix_ms = connection.certificate_expires_unix_ms
        for name, report in connection.models.items():
            model = status.models.add()
            model.CopyFrom(report)
            if name in connection.engines:
                model.load.CopyFrom(connection.engines[name])
            model.condition = self._placement.condition_of(entry.device_id, name)
        if state is DeviceState.READY and _all_suspect(status.models):
            status.state = DeviceState.SUSPECT.value
        return status

    async def DrainDevice(
        self, request: fleet_pb2.DeviceRequest, context: grpc.aio.ServicerContext
    ) -> fleet_pb2.DeviceReply:
        """Let the device finish what runs; it leaves when it is done."""
        await require_role(context, Role.GATEWAY)
        entry = await self._find(request.device, context)
        try:
            state = await self._devices.drain(entry)
        except StateError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, _NO_REGISTRY)
            raise RuntimeError("abort returned") from error
        _log.info("device_drain_requested", device_id=entry.device_id)
        return _reply(entry.device_id, state)

    async def RemoveDevice(
        self, request: fleet_pb2.DeviceRequest, context: grpc.aio.ServicerContext
    ) -> fleet_pb2.DeviceReply:
        """Revoke the device for good; what runs on it moves or fails."""
        await require_role(context, Role.GATEWAY)
        entry = await self._find(request.device, context)
        try:
            await self._devices.remove(entry.device_id)
            self._placement.forget(entry.device_id)
            if self._cache_users is not None:
                await self._cache_users.withdraw(entry.device_id)
        except StateError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, _NO_REGISTRY)
            raise RuntimeError("abort returned") from error
        _log.info("device_removed", device_id=entry.device_id, name=entry.name)
        return _reply(entry.device_id, DeviceState.REVOKED)

    async def _find(self, id_or_name: str, context: grpc.aio.ServicerContext) -> DeviceEntry:
        try:
            entry = await self._registry.get(DeviceId(id_or_name))
            if entry is None or entry.revoked:
                entry = await self._registry.find_by_name(id_or_name)
        except StateError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, _NO_REGISTRY)
            raise RuntimeError("abort returned") from error
        if entry is None:
            message = f"no device is called {id_or_name!r}; list the devices to see their names"
            await context.abort(grpc.StatusCode.NOT_FOUND, message)
            raise RuntimeError("abort returned")
        return entry


def _reply(device_id: DeviceId, state: DeviceState | None) -> fleet_pb2.DeviceReply:
    return fleet_pb2.DeviceReply(device_id=device_id, state=state.value if state else "")


def _all_suspect(models: Sequence[engine_pb2.ModelReport]) -> bool:
    """Whether the device gets no requests though it has loaded what it serves."""
    loaded = [model for model in models if model.state == engine_pb2.MODEL_STATE_READY]
    return bool(loaded) and all(model.condition for model in loaded)
