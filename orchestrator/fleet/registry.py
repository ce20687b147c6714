"""The registry seam: what outlives a hub process about each enrolled device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from orchestrator.fleet.view import DeviceId, DeviceState


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """One enrolled device; `epoch` is that of its newest connection, 0 before the first."""

    device_id: DeviceId
    name: str
    cert_serial: str = ""
    state: DeviceState = DeviceState.ENROLLED
    device_class: str = ""
    revoked: bool = False
    enrolled_unix_ms: int = 0
    last_seen_unix_ms: int = 0
    epoch: int = 0


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

    async def record_state(
        self, device_id: DeviceId, state: DeviceState, last_seen_unix_ms: int, device_class: str
    ) -> None:
        """Note a change of state; does nothing for a revoked or unknown device."""

    async def next_epoch(self, device_id: DeviceId) -> int:
        """Raise the device's epoch by one and return it: larger than any before, whatever hub."""

    async def record_certificate(self, device_id: DeviceId, cert_serial: str) -> None:
        """Note a renewed certificate; does nothing for a revoked or unknown device."""

    async def revoke(self, device_id: DeviceId) -> None:
        """Refuse the device for good and free its name; idempotent."""
