"""Brings devices to what is wanted: publishes what they have, plans, and sends orders.

Every hub tells what its devices have and orders them; one of the hubs plans. All of it
goes over Redis, so a hub that restarts goes on where it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import structlog

from orchestrator.catalogue.model import DeviceFacts, ModelFacts, Placement, Variant
from orchestrator.catalogue.planning import HEARD_WITHIN_MS, plan
from orchestrator.catalogue.store_redis import CatalogueStore
from orchestrator.fleet.registry import Registry
from orchestrator.fleet.registry_redis import StateError
from orchestrator.fleet.view import DeviceId, DeviceState
from orchestrator.hub.clock import Clock
from orchestrator.hub.connection import DeviceConnection
from orchestrator.hub.devices import Devices
from shoal.v1 import device_pb2, engine_pb2

_log = structlog.get_logger()

INTERVAL_S = 1.0
# An order that led to nothing is given again after this; twice as long each time.
REPEAT_MS = 15_000.0
MAX_REPEAT_MS = 600_000.0
_FILE_FAULTS = ("FILE", "ENGINE")


class ModelPlacement:
    """The loop of one hub."""

    def __init__(
        self,
        hub_id: str,
        store: CatalogueStore,
        registry: Registry,
        devices: Devices,
        clock: Clock,
    ) -> None:
        self._hub_id = hub_id
        self._store = store
        self._registry = registry
        self._devices = devices
        self._clock = clock
        self._published: dict[DeviceId, DeviceFacts] = {}
        # By device and variant: when it may be ordered again, and the pause after that.
        self._ordered: dict[tuple[str, str], tuple[float, float]] = {}

    async def run(self) -> None:
        """Until cancelled; an outage of Redis is waited out."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self.tick()
            except StateError as error:
                _log.warning("models_not_placed", error=str(error))

    async def tick(self) -> None:
        """One round."""
        connections = self._devices.connections()
        if not await self._store.deployments() and not _any_deployed(connections):
            await self._store.clear_placements()
            return  # a fleet that deploys nothing pays one look a second
        labels = await self._store.labels_of([each.device_id for each in connections])
        facts = [self._facts(each, found) for each, found in zip(connections, labels, strict=True)]
        changed = [each for each in facts if self._published.get(each.device_id) != each]
        await self._store.publish(changed)
        self._published = {each.device_id: each for each in facts}
        for each in facts:
            await self._note_failures(each)
        if await self._store.may_plan(self._hub_id):
            situation = await self._store.situation(self._clock.unix_ms())
            members = await self._members(situation.devices)
            placements = plan(replace(situation, devices=members))
            await self._store.replace_placements(placements)
        else:
            placements = await self._store.placements()
        variants = {each.sha256: each for each in await self._store.variants()}
        wanted = {(each.device_id, each.model): each for each in placements if each.desired}
        for connection, device in zip(connections, facts, strict=True):
            if device.ready:
                self._bring_about(connection, device, wanted, variants)

    async def _members(self, devices: Sequence[DeviceFacts]) -> list[DeviceFacts]:
        """Those that were not removed from the fleet; others are forgotten."""
        members = []
        for device in devices:
            if self._clock.unix_ms() - device.seen_unix_ms > HEARD_WITHIN_MS:
                entry = await self._registry.get(device.device_id)
                if entry is None or entry.revoked:
                    await self._store.forget_device(device.device_id)
                    continue
            members.append(device)
        return members

    def _bring_about(
        self,
        connection: DeviceConnection,
        device: DeviceFacts,
        wanted: dict[tuple[DeviceId, str], Placement],
        variants: dict[str, Variant],
    ) -> None:
        for name, model in device.models.items():
            placement = wanted.get((device.device_id, name))
            if model.deployed and (placement is None or placement.sha256 != model.sha256):
                unload = device_pb2.UnloadModel(name=name)
                connection.send(device_pb2.HubFrame(unload_model=unload))
                _log.info("model_unload_ordered", device_id=device.device_id, model=name)
        for (device_id, name), placement in wanted.items():
            held = device.models.get(name)
            busy = held is not None and held.state != "FAILED"
            variant = variants.get(placement.sha256)
            if device_id == device.device_id and not busy and variant is not None:
                self._order(connection, placement, variant)

    def _order(self, connection: DeviceConnection, placement: Placement, variant: Variant) -> None:
        key = (placement.device_id, variant.sha256)
        now_ms = self._clock.monotonic_ms()
        due_ms, pause_ms = self._ordered.get(key, (0.0, REPEAT_MS))
        if now_ms < due_ms:
            return
        self._ordered[key] = (now_ms + pause_ms, min(MAX_REPEAT_MS, 2 * pause_ms))
        order = device_pb2.LoadModel(
            name=placement.model,
            sha256=variant.sha256,
            size_bytes=variant.size_bytes,
            file=variant.file,
            slots=placement.slots,
            context_tokens=placement.context_tokens,
            rate_bytes_per_s=placement.rate_bytes_per_s,
        )
        connection.send(device_pb2.HubFrame(load_model=order))
        _log.info("model_load_ordered", device_id=placement.device_id, model=placement.model)

    async def _note_failures(self, device: DeviceFacts) -> None:
        for model in device.models.values():
            if model.deployed and model.state == "FAILED" and model.failure_kind in _FILE_FAULTS:
                await self._store.note_failure(model.sha256, device.device_id, model.failure)

    def _facts(self, connection: DeviceConnection, owners: dict[str, str]) -> DeviceFacts:
        capabilities, load = connection.capabilities, connection.load
        device_id = connection.device_id
        labels = {
            **capabilities.labels,
            **owners,
            "id": device_id,
            "name": connection.name,
            "class": capabilities.device_class,
            "arch": capabilities.architecture,
        }
        unloaded = engine_pb2.MODEL_STATE_UNLOADED
        return DeviceFacts(
            device_id=device_id,
            name=connection.name,
            labels=labels,
            ready=self._devices.state_of(device_id) is DeviceState.READY,
            total_bytes=load.memory_total_bytes,
            available_bytes=load.memory_available_bytes,
            models={
                name: _model_facts(report)
                for name, report in connection.models.items()
                if report.state != unloaded
            },
            seen_unix_ms=connection.last_seen_unix_ms,
        )


def _any_deployed(connections: list[DeviceConnection]) -> bool:
    return any(model.deployed for each in connections for model in each.models.values())


def _model_facts(report: engine_pb2.ModelReport) -> ModelFacts:
    kind = engine_pb2.FailureKind.Name(report.failure_kind).removeprefix("FAILURE_KIND_")
    return ModelFacts(
        state=engine_pb2.ModelState.Name(report.state).removeprefix("MODEL_STATE_"),
        sha256=report.file_sha256,
        deployed=report.deployed,
        failure=report.failure,
        failure_kind="" if kind == "UNSPECIFIED" else kind,
        fetched_bytes=report.fetched_bytes,
        file_bytes=report.file_bytes,
    )
