"""Decision records of requests that the cloud served: kept as those of the hub are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from orchestrator.dispatch.backend import Account
from orchestrator.fleet.decisions_redis import DecisionStore, StoredDecision
from orchestrator.fleet.registry_redis import StateError
from orchestrator.fleet.view import DeviceId
from orchestrator.routing.decision import Decision
from orchestrator.routing.record import Actual, Attempt, DecisionRecord, Explained
from shoal.errors import ShoalError
from shoal.openai.outcome import Outcome
from shoal.openai.tier_use import money_by_tier, tokens_by_tier, usage_flags

_log = structlog.get_logger(__name__)

# A hub writes its records in batches, a few times a second.
_HUB_WRITE_S = 0.5


@dataclass(frozen=True, slots=True)
class CloudSequence:
    """One sequence that the cloud served, or failed to."""

    tenant: str
    model: str
    outcome: Outcome
    account: Account


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

    def keep(self, sequence: CloudSequence, failure: ShoalError | None) -> None:
        """Record one cloud sequence. An endpoint's own words stay out: they may quote a prompt."""
        outcome = sequence.outcome
        ended = "finished" if outcome.finished else failure.reason.value if failure else "cancelled"
        record = _record(sequence, ended, self._unix_ms())
        _log.info(
            "request_finished",
            request_id=outcome.request_id,
            tier="cloud",
            model=sequence.model,
            outcome=ended,
        )
        attempt = outcome.placed.attempt if outcome.placed else 1
        task = asyncio.create_task(self._write(record, attempt))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _write(self, record: DecisionRecord, attempt: int) -> None:
        device_id = record.attempts[-1].device_id if record.attempts else ""
        decision = record.decision
        stored = StoredDecision(decision.request_id, device_id, decision.model, record.to_json())
        if attempt > 1:
            # The hub writes a record of its refusal under the same id; this one is the last word.
            await asyncio.sleep(_HUB_WRITE_S)
        try:
            await self._store.append([stored])
        except StateError as error:
            _log.warning("decision_record_lost", request_id=decision.request_id, cause=repr(error))


def _record(sequence: CloudSequence, ended: str, now_unix_ms: int) -> DecisionRecord:
    outcome = sequence.outcome
    decision = Decision(
        request_id=outcome.request_id,
        model=sequence.model,
        tier="cloud",
        class_order=(),
        ranked=(),
        candidates=(),
        reason=outcome.placed.reason if outcome.placed else "",
        failure=None,
        decided_unix_ms=now_unix_ms,
    )
    uses = sequence.account.uses
    return DecisionRecord(
        decision,
        tenant=sequence.tenant,
        attempts=tuple(
            Attempt(
                DeviceId(f"cloud:{each.endpoint}"),
                each.endpoint,
                each.started_unix_ms,
                each.failed,
            )
            for each in sequence.account.tries
        ),
        actual=_actual(outcome),
        outcome=ended,
        ended_unix_ms=now_unix_ms,
        explained=Explained(
            mode="cloud",
            privacy=outcome.privacy,
            tokens_by_tier=tokens_by_tier(uses),
            money_by_tier=money_by_tier(uses),
            usage_flags=tuple(usage_flags(uses)),
        ),
    )


def _actual(outcome: Outcome) -> Actual | None:
    finished = outcome.finished
    if finished is None:
        return None
    return Actual(
        prompt_tokens=finished.usage.prompt_tokens,
        completion_tokens=finished.usage.completion_tokens,
        cached_tokens=finished.usage.cached_tokens,
        queue_ms=finished.timings.queue_ms,
        ttft_ms=finished.timings.ttft_ms,
        tpot_ms=finished.timings.tpot_ms,
        total_ms=finished.timings.total_ms,
    )
