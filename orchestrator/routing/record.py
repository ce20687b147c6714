"""The decision record: one decision with what then happened, as stored and shown."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from orchestrator.fleet.view import DeviceClass, DeviceId
from orchestrator.routing.decision import (
    Candidate,
    Decision,
    Prediction,
    Rejection,
    RejectionKind,
)
from shoal.errors import Reason, ShoalError


@dataclass(frozen=True, slots=True)
class Attempt:
    """One device that the request was sent to; `failed` empty: it served, or still runs."""

    device_id: DeviceId
    device_name: str
    started_unix_ms: int
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Actual:
    """What was measured, by the engine's own timings; `joules` None: not known.

    `edp_js`: joules x seconds from the request's arrival at the engine to its end.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_ms: float
    ttft_ms: float
    tpot_ms: float
    joules: float | None = None
    joules_estimated: bool = True
    total_ms: float = 0.0
    edp_js: float | None = None
    # How it was drafted and verified (shoal.openai.speculative); None: it was not.
    speculative: dict[str, Any] | None = None
    # Whether its prefix was fetched from the shared tier or computed, by which figures, and
    # how long restoring took by tier (shoal.kv_fetch); None: there was no question.
    kv_fetch: dict[str, Any] | None = None
    kv_restore_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explained:
    """How tiers worked together, how far the request might travel, and what it cost.

    `tokens_by_tier`: {tier: {prompt, completion}}; `money_by_tier`: {tier: {amount,
    currency}}, of tiers whose price is known; `usage_flags`: what was odd about the
    usage that endpoints reported.
    """

    mode: str
    privacy: str
    tokens_by_tier: dict[str, Any]
    money_by_tier: dict[str, Any] = field(default_factory=dict)
    usage_flags: tuple[str, ...] = ()
    joules_by_tier: dict[str, float] = field(default_factory=dict)
    # What a cascade decided, by which values; None: it was none.
    cascade: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """The last decision of a request (it holds every candidate) and its outcome.

    `outcome` is "running", "finished", "cancelled" or an error code of shoal.errors.
    `queue_ms`: how long it waited in the hub for a device with room.
    """

    decision: Decision
    tenant: str = ""
    attempts: tuple[Attempt, ...] = field(default_factory=tuple)
    actual: Actual | None = None
    outcome: str = "running"
    ended_unix_ms: int = 0
    # None: one device answered alone.
    explained: Explained | None = None
    queue_ms: float = 0.0
    # Whether another device was to compute the prompt (routing.shared_prefill), by which
    # figures, and what came of it; None: there was no question.
    shared_prefill: dict[str, object] | None = None

    def with_attempt(self, attempt: Attempt) -> DecisionRecord:
        """The record with one more device tried."""
        return replace(self, attempts=(*self.attempts, attempt))

    def with_attempts(self, attempts: tuple[Attempt, ...]) -> DecisionRecord:
        """The record with these attempts instead."""
        return replace(self, attempts=attempts)

    def with_failed_attempt(self, failed: str) -> DecisionRecord:
        """The record with the latest attempt marked failed; unchanged without attempts."""
        if not self.attempts:
            return self
        last = replace(self.attempts[-1], failed=failed)
        return replace(self, attempts=(*self.attempts[:-1], last))

    def ended(self, outcome: str, unix_ms: int, actual: Actual | None = None) -> DecisionRecord:
        """The record at its end."""
        return replace(self, outcome=outcome, ended_unix_ms=unix_ms, actual=actual)

    def to_json(self) -> str:
        """One JSON object; the names are those of the dataclasses."""
        return json.dumps(
            {
                **_decision_fields(self.decision),
                "tenant": self.tenant,
                "attempts": [asdict(attempt) for attempt in self.attempts],
                "actual": None if self.actual is None else asdict(self.actual),
                "outcome": self.outcome,
                "ended_unix_ms": self.ended_unix_ms,
                "queue_ms": self.queue_ms,
                "shared_prefill": self.shared_prefill,
                **asdict(self.explained or self._of_one_device()),
            },
            separators=(",", ":"),
        )

    def _of_one_device(self) -> Explained:
        tokens: dict[str, Any] = {}
        if self.actual is not None:
            actual = self.actual
            tokens["edge"] = {
                "prompt": actual.prompt_tokens,
                "completion": actual.completion_tokens,
            }
        joules: dict[str, float] = {}
        if self.actual is not None and self.actual.joules is not None:
            joules["edge"] = self.actual.joules
        mode = "edge"
        if self.actual is not None and self.actual.speculative is not None:
            mode = "speculative"
            tokens = {
                tier: {"prompt": self.actual.prompt_tokens, "completion": count}
                for tier, count in sorted(self.actual.speculative["tokens_by_tier"].items())
                if count
            }
        return Explained(mode, self.decision.privacy, tokens, joules_by_tier=joules)

    @classmethod
    def from_json(cls, text: str) -> DecisionRecord:
        """The record that `to_json` wrote; KeyError or ValueError when it is not one."""
        raw = json.loads(text)
        return cls(
            decision=_decision_from(raw),
            tenant=raw["tenant"],
            attempts=tuple(Attempt(**attempt) for attempt in raw["attempts"]),
            actual=None if raw["actual"] is None else Actual(**raw["actual"]),
            outcome=raw["outcome"],
            ended_unix_ms=raw["ended_unix_ms"],
            queue_ms=raw.get("queue_ms", 0.0),
            shared_prefill=raw.get("shared_prefill"),
            explained=_explained_from(raw),
        )


def _explained_from(raw: dict[str, Any]) -> Explained | None:
    """None for one device's, whose values follow from the rest, and for older records."""
    tiers = raw.get("tokens_by_tier", {})
    if raw.get("mode", "edge") == "edge" and tiers.keys() <= {"edge"}:
        return None
    return Explained(
        raw["mode"],
        raw["privacy"],
        raw["tokens_by_tier"],
        raw["money_by_tier"],
        tuple(raw["usage_flags"]),
        raw.get("joules_by_tier", {}),
        raw.get("cascade"),
    )


def _decision_fields(decision: Decision) -> dict[str, Any]:
    failure = decision.failure
    return {
        "request_id": decision.request_id,
        "model": decision.model,
        "tier": decision.tier,
        "class_order": list(decision.class_order),
        "ranked": list(decision.ranked),
        "candidates": [_candidate_fields(candidate) for candidate in decision.candidates],
        "num_unlisted": decision.num_unlisted,
        "reason": decision.reason,
        "failure": None
        if failure is None
        else {
            "code": failure.reason.value,
            "message": failure.message,
            "param": failure.param,
            "retry_after_ms": failure.retry_after_ms,
        },
        "decided_unix_ms": decision.decided_unix_ms,
    }


def _candidate_fields(candidate: Candidate) -> dict[str, Any]:
    rejection = candidate.rejection
    return {
        "device_id": candidate.device_id,
        "device_name": candidate.device_name,
        "device_class": candidate.device_class.value,
        "prediction": None if candidate.prediction is None else asdict(candidate.prediction),
        "rejected": candidate.rejected,
        "rejected_kind": None if rejection is None else rejection.kind.value,
    }


def _decision_from(raw: dict[str, Any]) -> Decision:
    failure = raw["failure"]
    return Decision(
        request_id=raw["request_id"],
        model=raw["model"],
        tier=raw["tier"],
        class_order=tuple(DeviceClass(name) for name in raw["class_order"]),
        ranked=tuple(DeviceId(device_id) for device_id in raw["ranked"]),
        candidates=tuple(_candidate_from(candidate) for candidate in raw["candidates"]),
        num_unlisted=raw["num_unlisted"],
        reason=raw["reason"],
        failure=None
        if failure is None
        else ShoalError(
            Reason(failure["code"]),
            failure["message"],
            param=failure["param"],
            retry_after_ms=failure["retry_after_ms"],
        ),
        decided_unix_ms=raw["decided_unix_ms"],
        privacy=raw.get("privacy", ""),
    )


def _candidate_from(raw: dict[str, Any]) -> Candidate:
    rejection = None
    if raw["rejected"] is not None:
        rejection = Rejection(RejectionKind(raw["rejected_kind"]), "{}", (raw["rejected"],))
    return Candidate(
        device_id=DeviceId(raw["device_id"]),
        device_name=raw["device_name"],
        device_class=DeviceClass(raw["device_class"]),
        prediction=None if raw["prediction"] is None else Prediction(**raw["prediction"]),
        rejection=rejection,
    )
