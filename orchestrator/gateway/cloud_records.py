"""Decision records of requests that the cloud had a part in: kept as those of the hub are."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from orchestrator.dispatch.backend import Account
from orchestrator.fleet.decisions_redis import DecisionStore, StoredDecision
from orchestrator.fleet.registry_redis import StateError
from orchestrator.gateway.joint_records import actual, attempts_of, explained, joined, served_by
from orchestrator.routing.decision import Decision
from orchestrator.routing.record import DecisionRecord
from shoal.errors import ShoalError
from shoal.openai.outcome import Outcome

_log = structlog.get_logger(__name__)

# A hub writes its records in batches, a few times a second.
_HUB_WRITE_S = 0.5
# How long its part of a joint record is waited for.
_HUB_POLL_S, _HUB_POLLS = 0.1, 30
# Many records may wait for their parts; each call takes one of the client's connections.
_MAX_CALLS = 16


@dataclass(frozen=True, slots=True)
class CloudSequence:
    """One sequence that the cloud served, failed to, or stood behind; `tier`: who served."""

    tenant: str
    model: str
    outcome: Outcome
    account: Account
    tier: str = "cloud"


class CloudRecords:
    """Writes a record after the response's end; the client never waits for it."""

    def __init__(
        self,
        store: DecisionStore,
        unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._store = store
        self._unix_ms = unix_ms
        self._writes: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._calls = asyncio.Semaphore(_MAX_CALLS)

    def keep(self, sequence: CloudSequence, failure: ShoalError | None) -> None:
        """Record one sequence, also one that the edge served after the cloud was asked.

        An endpoint's own words stay out: they may quote a prompt.
        """
        outcome = sequence.outcome
        ended = "finished" if outcome.finished else failure.reason.value if failure else "cancelled"
        record = _record(sequence, ended, self._unix_ms())
        _log.info(
            "request_finished",
            request_id=outcome.request_id,
            tier=sequence.tier,
            model=sequence.model,
            outcome=ended,
        )
        task = asyncio.create_task(self._write(record, sequence))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def close(self) -> None:
        """Write what is still to be written, without waiting for the hub's parts."""
        self._closing.set()
        await asyncio.gather(*self._writes, return_exceptions=True)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    async def _write(self, record: DecisionRecord, sequence: CloudSequence) -> None:
        request_id = record.decision.request_id
        of_cascade = sequence.account.cascade is not None
        attempt = sequence.outcome.placed.attempt if sequence.outcome.placed else 1
        try:
            if of_cascade or sequence.tier == "edge":
                ids = sequence.account.hub_ids if of_cascade else [request_id]
                record = await self._with_hub_parts(record, ids, sequence.account)
            elif attempt > 1:
                # The hub writes a record of its refusal under the same id; this is the last word.
                await self._pause(_HUB_WRITE_S)
            model, text = record.decision.model, record.to_json()
            stored = StoredDecision(request_id, served_by(record), model, text)
            async with self._calls:
                await self._store.append([stored])
        except StateError as error:
            _log.warning("decision_record_lost", request_id=request_id, cause=repr(error))

    async def _with_hub_parts(
        self, record: DecisionRecord, ids: Sequence[str], account: Account
    ) -> DecisionRecord:
        """The record with the hubs' own of these ids; without those that do not come."""
        texts: list[str] = []
        for _ in range(_HUB_POLLS if ids else 0):
            await self._pause(_HUB_POLL_S)
            async with self._calls:
                found = [await self._store.get(each) for each in ids]
            texts = [text for text in found if text is not None]
            if len(texts) == len(ids) or self._closing.is_set():
                break
        parts = [DecisionRecord.from_json(text) for text in texts]
        return joined(record, parts, account.given_up)


def _record(sequence: CloudSequence, ended: str, now_unix_ms: int) -> DecisionRecord:
    outcome, account = sequence.outcome, sequence.account
    decision = Decision(
        request_id=outcome.request_id,
        model=sequence.model,
        tier="cloud" if sequence.tier == "cloud" else "edge",
        class_order=(),
        ranked=(),
        candidates=(),
        reason=outcome.placed.reason if outcome.placed else "",
        failure=None,
        decided_unix_ms=now_unix_ms,
    )
    return DecisionRecord(
        decision,
        tenant=sequence.tenant,
        attempts=attempts_of(account.tries),
        actual=actual(outcome),
        outcome=ended,
        ended_unix_ms=now_unix_ms,
        explained=explained(outcome, account, outcome.mode),
    )
