"""Takes devices' reports of local requests; each is acknowledged once it is on record."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import structlog

from orchestrator.fleet.local_served_redis import LocalReport, LocalServedStore
from orchestrator.fleet.view import DeviceId
from shoal.v1 import device_pb2

_log = structlog.get_logger()

# A device repeats what was not acknowledged, so what finds no room is not lost.
MAX_WAITING = 1_000
MAX_MODELS = 64
MAX_NAME_CHARS = 200

Send = Callable[[DeviceId, device_pb2.HubFrame], int | None]


class LocalServed:
    """Queue of reports on their way to the store."""

    def __init__(self, store: LocalServedStore, unix_ms: Callable[[], int]) -> None:
        self._store = store
        self._unix_ms = unix_ms
        self._waiting: deque[LocalReport] = deque()

    def take(self, device_id: DeviceId, told: device_pb2.LocalServed) -> None:
        """Queue a report; costs no I/O."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(to_report(device_id, told, self._unix_ms()))

    async def flush(self, send: Send) -> None:
        """Write and acknowledge all that waits; raises StateError and keeps the unwritten."""
        while self._waiting:
            report = self._waiting[0]
            counted = await self._store.add(report)
            self._waiting.popleft()
            if counted:
                _log.info(
                    "local_requests_reported",
                    device_id=report.device_id,
                    models={
                        model: int(usage.get("finished", 0))
                        for model, usage in report.usages.items()
                    },
                )
            ack = device_pb2.LocalServedAck(journal=report.journal, sequence=report.sequence)
            send(report.device_id, device_pb2.HubFrame(local_served_ack=ack))


def to_report(
    device_id: DeviceId, told: device_pb2.LocalServed, received_unix_ms: int
) -> LocalReport:
    """The message as a value; amounts that no sum can hold count as 0."""
    usages: dict[str, dict[str, float]] = {}
    for usage in list(told.usages)[:MAX_MODELS]:
        named = {field.name: value for field, value in usage.ListFields() if field.name != "model"}
        usages[usage.model[:MAX_NAME_CHARS]] = {
            name: value for name, value in named.items() if math.isfinite(value) and value >= 0
        }
    journal = told.journal[:MAX_NAME_CHARS]
    return LocalReport(device_id, journal, told.sequence, usages, received_unix_ms)
