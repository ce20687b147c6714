"""A registry in this process's memory, for pure tests and single-process trials."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from orchestrator.fleet.registry import Change, ChangeKind, DeviceEntry, NameTaken, StateReport
from orchestrator.fleet.view import DeviceId, DeviceState


class MemoryRegistry:
    """Registry whose content ends with the process."""

    def __init__(self) -> None:
        self._entries: dict[DeviceId, DeviceEntry] = {}
        self._ids_by_name: dict[str, DeviceId] = {}
        self._log: list[Change] = []
        self._logged = asyncio.Event()

    async def add(self, entry: DeviceEntry) -> None:
        """See Registry.add."""
        holder = self._ids_by_name.get(entry.name)
        if holder is not None and holder != entry.device_id:
            raise NameTaken(entry.name, holder)
        self._ids_by_name[entry.name] = entry.device_id
        self._entries[entry.device_id] = entry

    async def get(self, device_id: DeviceId) -> DeviceEntry | None:
        """See Registry.get."""
        return self._entries.get(device_id)

    async def find_by_name(self, name: str) -> DeviceEntry | None:
        """See Registry.find_by_name."""
        device_id = self._ids_by_name.get(name)
        return None if device_id is None else self._entries.get(device_id)

    async def list(self) -> list[DeviceEntry]:
        """See Registry.list."""
        return sorted(self._entries.values(), key=lambda entry: entry.device_id)

    async def record_states(self, reports: Sequence[StateReport]) -> None:
        """See Registry.record_states."""
        for report in reports:
            entry = self._entries.get(report.device_id)
            if entry is not None and not entry.revoked and entry.epoch <= report.epoch:
                self._entries[report.device_id] = replace(
                    entry,
                    state=report.state,
                    last_seen_unix_ms=report.last_seen_unix_ms,
                    device_class=report.device_class or entry.device_class,
                )

    async def connect(self, device_id: DeviceId, hub: str, known_epoch: int) -> int:
        """See Registry.connect."""
        entry = self._entries[device_id]
        epoch = max(entry.epoch, known_epoch) + 1
        self._entries[device_id] = replace(entry, epoch=epoch, hub=hub)
        self._tell(Change(ChangeKind.CONNECTED, device_id, epoch, hub))
        return epoch

    async def drain(self, device_id: DeviceId) -> None:
        """See Registry.drain."""
        entry = self._entries.get(device_id)
        if entry is not None and not entry.revoked:
            self._entries[device_id] = replace(entry, state=DeviceState.DRAINING)
            self._tell(Change(ChangeKind.DRAIN, device_id))

    async def last_change(self) -> str:
        """See Registry.last_change."""
        return str(len(self._log))

    async def changes(self, after: str, wait_ms: int) -> tuple[Sequence[Change], str]:
        """See Registry.changes."""
        if len(self._log) == int(after):
            self._logged.clear()
            try:
                async with asyncio.timeout(wait_ms / 1_000):
                    await self._logged.wait()
            except TimeoutError:
                return [], after
        return self._log[int(after) :], str(len(self._log))

    async def record_certificate(self, device_id: DeviceId, cert_serial: str) -> None:
        """See Registry.record_certificate."""
        entry = self._entries.get(device_id)
        if entry is not None and not entry.revoked:
            self._entries[device_id] = replace(entry, cert_serial=cert_serial)

    async def revoke(self, device_id: DeviceId) -> None:
        """See Registry.revoke."""
        entry = self._entries.get(device_id)
        if entry is None:
            return
        self._entries[device_id] = replace(entry, revoked=True, state=DeviceState.REVOKED)
        if self._ids_by_name.get(entry.name) == device_id:
            del self._ids_by_name[entry.name]
        self._tell(Change(ChangeKind.REVOKED, device_id))

    def _tell(self, change: Change) -> None:
        self._log.append(change)
        self._logged.set()
