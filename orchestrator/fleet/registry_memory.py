"""A registry in this process's memory, for pure tests and single-process trials."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.fleet.registry import DeviceEntry, NameTaken
from orchestrator.fleet.view import DeviceId, DeviceState


class MemoryRegistry:
    """Registry whose content ends with the process."""

    def __init__(self) -> None:
        self._entries: dict[DeviceId, DeviceEntry] = {}
        self._ids_by_name: dict[str, DeviceId] = {}

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

    async def record_state(
        self, device_id: DeviceId, state: DeviceState, last_seen_unix_ms: int, device_class: str
    ) -> None:
        """See Registry.record_state."""
        entry = self._entries.get(device_id)
        if entry is not None and not entry.revoked:
            self._entries[device_id] = replace(
                entry,
                state=state,
                last_seen_unix_ms=last_seen_unix_ms,
                device_class=device_class or entry.device_class,
            )

    async def next_epoch(self, device_id: DeviceId) -> int:
        """See Registry.next_epoch."""
        entry = self._entries[device_id]
        self._entries[device_id] = replace(entry, epoch=entry.epoch + 1)
        return entry.epoch + 1

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
