"""Between the registry, which all hubs of a fleet share, and the devices of this hub.

A device belongs to the hub that took its newest connection. Each hub reads what the
others took from the registry's log, and lets go of devices that moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from orchestrator.fleet.lifecycle_events import (
    DrainRequested,
    Enrolled,
    Event,
    MovedAway,
    Removed,
)
from orchestrator.fleet.registry import Change, ChangeKind, DeviceEntry, Registry, StateReport
from orchestrator.fleet.registry_redis import StateError
from orchestrator.fleet.view import DeviceId
from orchestrator.hub.connection import Rejected
from shoal.v1 import device_pb2

_log = structlog.get_logger()

# One read of the log waits so long; shorter than the state client's time-out.
WAIT_MS = 2_000
# After the registry failed.
RETRY_S = 1.0
# A device's word on its epoch beyond this is not believed.
_MAX_EPOCH = 2**40


@dataclass(frozen=True, slots=True)
class Known:
    """What this hub itself knows of a device; `name` empty: it never connected here."""

    name: str
    epoch: int
    revoked: bool


class Roster:
    """Who is a member, whose device it is, and what this hub tells of its own."""

    def __init__(self, hub_id: str, registry: Registry, handle: Callable[[Event], None]) -> None:
        self._hub_id = hub_id
        self._registry = registry
        self._handle = handle
        self._position = "0-0"
        # Newest connection of each device that other hubs took, as far as heard.
        self._elsewhere: dict[DeviceId, int] = {}
        self._unwritten: dict[DeviceId, StateReport] = {}

    async def restore(self) -> None:
        """Take up the devices that were this hub's; they come back with their Hello."""
        self._position = await self._registry.last_change()
        for entry in await self._registry.list():
            if entry.hub == self._hub_id:
                self._handle(Enrolled(entry.device_id, entry.state, entry.epoch))

    async def admit(
        self, device_id: DeviceId, last_epoch: int, known: Known
    ) -> tuple[DeviceEntry, int]:
        """The device's entry and the epoch of its new connection; raises Rejected.

        Without the registry, from what this hub knows. `last_epoch`: by the device's word.
        """
        floor = max(min(last_epoch, _MAX_EPOCH), known.epoch)
        try:
            entry = await self._registry.get(device_id)
            if entry is None:
                raise Rejected(
                    device_pb2.Reject.REASON_UNKNOWN_DEVICE,
                    "this fleet does not know the device; enrol it again with a new token",
                )
            if not entry.revoked:
                epoch = await self._registry.connect(device_id, self._hub_id, floor)
                self._adopt(entry, epoch)
                return entry, epoch
        except StateError as error:
            _log.warning("registry_unavailable", error=str(error), device_id=device_id)
            if not known.name or known.revoked:
                raise Rejected(
                    device_pb2.Reject.REASON_SHUTTING_DOWN,
                    "the fleet's registry does not answer; connect again",
                ) from error
            return DeviceEntry(device_id, known.name), floor + 1
        raise Rejected(
            device_pb2.Reject.REASON_REVOKED,
            "the device was removed from the fleet; enrol it again with a new token",
        )

    def _adopt(self, entry: DeviceEntry, epoch: int) -> None:
        """Go by the registry where another hub held the device since it was here."""
        if self._elsewhere.get(entry.device_id, 0) > epoch:
            # It was faster than we: the newer connection of it is another hub's.
            raise Rejected(
                device_pb2.Reject.REASON_REPLACED, "a newer connection of this device took over"
            )
        self._elsewhere.pop(entry.device_id, None)
        if entry.hub != self._hub_id:
            self._handle(MovedAway(entry.device_id, entry.epoch))
        self._handle(Enrolled(entry.device_id, entry.state, entry.epoch))

    async def follow(self) -> None:
        """Hear of what other hubs do, for ever."""
        while True:
            try:
                changes, self._position = await self._registry.changes(self._position, WAIT_MS)
            except StateError as error:
                _log.warning("changes_not_read", error=str(error))
                await asyncio.sleep(RETRY_S)
                await self._catch_up()
                continue
            for change in changes:
                self._apply(change)

    def _apply(self, change: Change) -> None:
        match change.kind:
            case ChangeKind.CONNECTED if change.hub != self._hub_id:
                self._elsewhere[change.device_id] = change.epoch
                self._handle(MovedAway(change.device_id, change.epoch))
            case ChangeKind.DRAIN:
                self._handle(DrainRequested(change.device_id))
            case ChangeKind.REVOKED:
                self._handle(Removed(change.device_id))

    async def _catch_up(self) -> None:
        """The log is bounded: after an outage, look at the registry itself."""
        try:
            for entry in await self._registry.list():
                if entry.revoked:
                    self._handle(Removed(entry.device_id))
                elif entry.hub and entry.hub != self._hub_id:
                    self._handle(MovedAway(entry.device_id, entry.epoch))
        except StateError:
            return  # the next read of the log fails too, and ends here again

    def note(self, report: StateReport) -> None:
        """A device's state changed; written with the next `write`."""
        self._unwritten[report.device_id] = report

    def forget(self, device_id: DeviceId) -> None:
        """The device is another hub's; what was not written of it is void."""
        self._unwritten.pop(device_id, None)

    async def write(self) -> None:
        """Write changed states; raises StateError and tries them again later."""
        if not self._unwritten:
            return
        reports = list(self._unwritten.values())
        await self._registry.record_states(reports)
        for report in reports:
            if self._unwritten.get(report.device_id) is report:
                del self._unwritten[report.device_id]
