"""Carries a rollout on: orders, proves and confirms on this hub's devices; one hub leads.

All that must outlive this process is in Redis: a hub that starts goes on where it, or
another, was. What it does not find there it does again: orders and proofs bear that.
"""

from __future__ import annotations

import asyncio

import structlog

from orchestrator.fleet.registry_redis import StateError
from orchestrator.fleet.view import DeviceState
from orchestrator.hub.clock import Clock
from orchestrator.hub.connection import DeviceConnection
from orchestrator.hub.devices import Devices
from orchestrator.hub.proofs import Proofs
from orchestrator.hub.upgrading import cannot_upgrade
from orchestrator.rollout.following import Act, Seen, advance, follow
from orchestrator.rollout.model import Outcome, Rollout, Target
from orchestrator.rollout.store_redis import RolloutStore
from shoal.v1 import device_pb2, engine_pb2

_log = structlog.get_logger()

INTERVAL_S = 1.0


class Rollouts:
    """The loop of one hub; `proofs` hears the devices' frames."""

    def __init__(self, hub_id: str, store: RolloutStore, devices: Devices, clock: Clock) -> None:
        self._hub_id = hub_id
        self._store = store
        self._devices = devices
        self._clock = clock
        self.proofs = Proofs(devices.send)

    async def run(self) -> None:
        """Until cancelled; an outage of Redis is waited out."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self.tick()
            except StateError as error:
                _log.warning("rollout_waits", error=str(error))

    async def tick(self) -> None:
        """One round; without a rollout one look at Redis."""
        rollout = await self._store.running()
        if rollout is None:
            self.proofs.clear()
            return
        targets = await self._store.targets()
        for connection in self._devices.connections():
            target = targets.get(connection.device_id)
            if target is not None and self._devices.is_current(connection):
                targets[connection.device_id] = await self._move(connection, target, rollout)
        if await self._store.may_lead(self._hub_id):
            after, changed = advance(rollout, targets, self._clock.unix_ms())
            for target in changed:
                _log.info("rollout", device_id=target.device_id, phase=target.phase, why=target.why)
            if changed:
                await self._store.put(rollout, changed)
            if after.outcome is not Outcome.RUNNING and await self._store.end(after):
                _log.info("rollout_ended", version=after.version, outcome=after.outcome)

    async def _move(self, connection: DeviceConnection, target: Target, rollout: Rollout) -> Target:
        seen = self._seen(connection, target)
        after, act = follow(target, seen, rollout, self._clock.unix_ms())
        if after != target:
            # Stored before it is done: an order given twice does no harm, a lost one might.
            if not await self._store.put(rollout, [after]):
                return target
            _log.info("rollout", device_id=after.device_id, phase=after.phase, why=after.why)
        match act:
            case Act.ORDER:
                connection.upgrade.Clear()  # what an earlier order led to
                connection.send(device_pb2.HubFrame(upgrade=_order(rollout)))
            case Act.PROVE:
                self.proofs.ask(connection, target.models, self._clock.monotonic_ms())
            case Act.CONFIRM:
                verdict = device_pb2.UpgradeVerdict(release=rollout.release, keep=True)
                connection.send(device_pb2.HubFrame(upgrade_verdict=verdict))
        return after

    def _seen(self, connection: DeviceConnection, target: Target) -> Seen:
        installation, progress = connection.installation, connection.upgrade
        ready = engine_pb2.MODEL_STATE_READY
        return Seen(
            epoch=connection.epoch,
            ready=self._devices.state_of(connection.device_id) is DeviceState.READY,
            release=installation.release,
            trial=installation.trial,
            failed_release=installation.failed_release,
            failure=installation.failure,
            progress=progress.phase,
            progress_failure=progress.failure,
            refusal=cannot_upgrade(connection),
            models=tuple(
                sorted(name for name, each in connection.models.items() if each.state == ready)
            ),
            proven=self.proofs.hold(connection, target.models),
        )


def _order(rollout: Rollout) -> device_pb2.Upgrade:
    return device_pb2.Upgrade(
        version=rollout.version,
        files=[device_pb2.UpgradeFile(name=n, sha256=s) for n, s in rollout.files],
        ready_within_s=rollout.ready_within_s,
        drain_within_s=rollout.drain_within_s,
    )
