"""Decision records of requests that several worked for: the hub's part and the gateway's as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.dispatch.backend import Account, Try
from orchestrator.fleet.view import DeviceId
from orchestrator.routing.record import Actual, Attempt, DecisionRecord, Explained
from shoal.kv_fetch import parse_decision, restore_times
from shoal.openai.outcome import Outcome
from shoal.openai.speculative import speculative_fields
from shoal.openai.tier_use import money_by_tier, tokens_by_tier, usage_flags

_CLOUD = "cloud:"


def explained(outcome: Outcome, account: Account, mode: str) -> Explained:
    """Tiers, money, energy and the cascade's decision, as known at the end."""
    uses = outcome.uses_by_tier
    return Explained(
        mode=mode,
        privacy=outcome.privacy,
        tokens_by_tier=tokens_by_tier(uses),
        money_by_tier=money_by_tier(uses),
        usage_flags=tuple(usage_flags(uses)),
        joules_by_tier=outcome.joules_by_tier,
        cascade=None if account.cascade is None else dict(account.cascade),
    )


def attempts_of(tries: Sequence[Try]) -> tuple[Attempt, ...]:
    """Endpoints that were asked, as a record has them."""
    return tuple(
        Attempt(DeviceId(_CLOUD + each.endpoint), each.endpoint, each.started_unix_ms, each.failed)
        for each in tries
    )


def served_by(record: DecisionRecord) -> str:
    """Id of the device or endpoint that answered, else that was asked last; empty: nobody was."""
    of_cloud = record.decision.tier == "cloud"
    ids = [
        each.device_id
        for each in record.attempts
        if not each.failed and each.device_id.startswith(_CLOUD) == of_cloud
    ]
    asked = ids or [each.device_id for each in record.attempts]
    return asked[-1] if asked else ""


def joined(
    own: DecisionRecord, of_hub: Sequence[DecisionRecord], given_up: Mapping[str, str]
) -> DecisionRecord:
    """The gateway's record with the devices' candidates and attempts, in order of time.

    `given_up`: why an answer was not used, by the hub's id; such an attempt did not serve.
    Where several of the hub's have candidates, those of the leg that answered last.
    """
    of_hub = [_marked(each, given_up.get(each.decision.request_id, "")) for each in of_hub]
    attempts = [*own.attempts, *(each for record in of_hub for each in record.attempts)]
    attempts.sort(key=lambda each: each.started_unix_ms)
    decision = own.decision
    with_candidates = [record for record in of_hub if record.decision.candidates]
    if with_candidates:
        latest = max(with_candidates, key=_answered_last).decision
        decision = replace(
            decision,
            candidates=latest.candidates,
            ranked=latest.ranked,
            class_order=latest.class_order,
            num_unlisted=latest.num_unlisted,
            decided_unix_ms=latest.decided_unix_ms,
        )
    queue_ms = sum(record.queue_ms for record in of_hub)
    shared = next((each.shared_prefill for each in of_hub if each.shared_prefill), None)
    return replace(
        own,
        decision=decision,
        attempts=tuple(attempts),
        queue_ms=queue_ms,
        shared_prefill=shared,
    )


def _marked(record: DecisionRecord, given_up: str) -> DecisionRecord:
    served = record.attempts and not record.attempts[-1].failed
    return record.with_failed_attempt(given_up) if given_up and served else record


def _answered_last(record: DecisionRecord) -> tuple[bool, int]:
    return record.outcome == "finished", record.decision.decided_unix_ms


def actual(outcome: Outcome) -> Actual | None:
    """What was measured of the answer that the client got."""
    finished = outcome.finished
    if finished is None:
        return None
    timings = finished.timings
    joules = timings.joules if timings.HasField("joules") else None
    return Actual(
        prompt_tokens=finished.usage.prompt_tokens,
        completion_tokens=finished.usage.completion_tokens,
        cached_tokens=finished.usage.cached_tokens,
        queue_ms=timings.queue_ms,
        ttft_ms=timings.ttft_ms,
        tpot_ms=timings.tpot_ms,
        joules=joules,
        joules_estimated=timings.joules_estimated,
        total_ms=timings.total_ms,
        edp_js=None if joules is None else joules * timings.total_ms / 1000,
        speculative=speculative_fields(finished).get("speculative"),
        kv_fetch=parse_decision(timings.kv_decision),
        kv_restore_ms=restore_times(timings.kv_restore_ms),
    )
