"""The registry seam: what outlives a hub process about each enrolled device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from orchestrator.fleet.view import DeviceId, DeviceState


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """One enrolled device; `epoch` is that of its newest connection, 0 before the first.

    `hub` is where that connection ended, and so who answers for the device's state.
    """

    device_id: DeviceId
    name: str
    cert_serial: str = ""
    state: DeviceState = DeviceState.ENROLLED
    device_class: str = ""
    revoked: bool = False
    enrolled_unix_ms: int = 0
    last_seen_unix_ms: int = 0
    epoch: int = 0
    hub: str = ""


@dataclass(frozen=True, slots=True)
class StateReport:
    """A state of a device as the hub of its connection `epoch` saw it; no class: unknown."""

    device_id: DeviceId
    state: DeviceState
    epoch: int
    last_seen_unix_ms: int = 0
    device_class: str = ""


class ChangeKind(StrEnum):
    """What the hubs of a fleet tell one another of a device."""

    CONNECTED = "connected"
    DRAIN = "drain"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the registry's log; of CONNECTED, `hub` took the connection `epoch`."""

    kind: ChangeKind
    device_id: DeviceId
    epoch: int = 0
    hub: str = ""


class NameTaken(Exception):
    """Another device that is not revoked holds the wanted name."""

    def __init__(self, name: str, holder: DeviceId) -> None:
        super().__init__(f"the device name {name!r} is taken by device {holder}")
        self.name = name
        self.holder = holder


class Registry(Protocol):
    """Where enrolled devices are kept. Each call is atomic; no call revives a revoked device."""

    async def add(self, entry: DeviceEntry) -> None:
        """Keep a new device and claim its name; raises NameTaken, and then changes nothing."""

    async def get(self, device_id: DeviceId) -> DeviceEntry | None:
        """The device, revoked ones included; None when it never enrolled."""

    async def find_by_name(self, name: str) -> DeviceEntry | None:
        """The device that holds the name now."""

    async def list(self) -> list[DeviceEntry]:
        """All devices, revoked ones included, ordered by id."""

    async def record_states(self, reports: Sequence[StateReport]) -> None:
        """Note changed states, in one round trip.

        Of a revoked or unknown device, and of one that has connected anew since, nothing is.
        """

    async def connect(self, device_id: DeviceId, hub: str, known_epoch: int) -> int:
        """Note a connection to `hub`, tell the other hubs, and return its epoch.

        Larger than any before, whatever hub, and than `known_epoch`.
        """

    async def drain(self, device_id: DeviceId) -> None:
        """Have the device finish what runs, wherever it is; nothing for a revoked one."""

    async def last_change(self) -> str:
        """Where the log of changes ends now."""

    async def changes(self, after: str, wait_ms: int) -> tuple[Sequence[Change], str]:
        """What follows `after` in the log, and where that ends; waits for something to come."""

    async def record_certificate(self, device_id: DeviceId, cert_serial: str) -> None:
        """Note a renewed certificate; does nothing for a revoked or unknown device."""

    async def revoke(self, device_id: DeviceId) -> None:
        """Refuse the device for good and free its name; idempotent."""
