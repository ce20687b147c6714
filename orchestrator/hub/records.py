"""Keeps decision records: queued in memory, written in batches, never in the token path."""

from __future__ import annotations

from collections import deque

import structlog

from orchestrator.fleet.decisions_redis import DecisionStore, StoredDecision
from orchestrator.routing.record import DecisionRecord

_log = structlog.get_logger()

# Records that wait while Redis is away; then the oldest are dropped, counted and logged.
MAX_WAITING = 10_000
BATCH = 64


class Recorder:
    """Queue of ended requests' records on their way to the store."""

    def __init__(self, store: DecisionStore) -> None:
        self._store = store
        self._waiting: deque[DecisionRecord] = deque()
        self.num_dropped = 0

    def keep(self, record: DecisionRecord) -> None:
        """Queue a record; costs no I/O and no rendering."""
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self.num_dropped += 1
        self._waiting.append(record)

    async def flush(self) -> None:
        """Write all that waits, some at a time; raises StateError and keeps the unwritten."""
        while self._waiting:
            batch = [self._waiting[i] for i in range(min(BATCH, len(self._waiting)))]
            await self._store.append([_stored(record) for record in batch])
            for record in batch:
                # Overflow during the write may have dropped the head already.
                if self._waiting and self._waiting[0] is record:
                    self._waiting.popleft()
        if self.num_dropped:
            _log.warning("decision_records_dropped", count=self.num_dropped)
            self.num_dropped = 0


def _stored(record: DecisionRecord) -> StoredDecision:
    return StoredDecision(
        request_id=record.decision.request_id,
        device_id=record.attempts[-1].device_id if record.attempts else "",
        model=record.decision.model,
        json_text=record.to_json(),
    )
