"""What is known of a choice's run: gathered from its updates, told in `usage` and `shoal`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from shoal.kv_fetch import parse_decision, restore_times
from shoal.openai.speculative import drafted_uses, speculative_fields
from shoal.openai.tier_use import TierUse, money_by_tier, tokens_by_tier, usage_flags
from shoal.v1 import inference_pb2 as pb

_FINISH_REASONS = {
    pb.Finished.REASON_STOP: "stop",
    pb.Finished.REASON_LENGTH: "length",
    pb.Finished.REASON_CONTENT_FILTER: "content_filter",
}


class Costing(Protocol):
    """What tells of tiers that cost money."""

    @property
    def uses(self) -> Mapping[str, TierUse]:
        """Tokens and money by tier, so far."""
        ...

    @property
    def joules(self) -> Mapping[str, float]:
        """Energy by tier, where several worked and it is known."""
        ...

    @property
    def cascade(self) -> Mapping[str, Any] | None:
        """What a cascade decided and by which values; None: it was none."""
        ...


class Running(Protocol):
    """A generation as its outcome sees it."""

    @property
    def tier(self) -> str:
        """Where it runs now."""
        ...

    @property
    def account(self) -> Costing:
        """What it has cost."""
        ...


class Outcome:
    """The placement and the measurements of one choice; grows with each update."""

    __slots__ = (
        "cascade", "finished", "joules", "placed", "privacy", "request_id", "tier", "uses",
    )  # fmt: skip

    def __init__(self, request_id: str, tier: str, privacy: str = "") -> None:
        self.request_id = request_id
        self.tier = tier
        self.privacy = privacy
        # Of tiers that cost money; the edge's tokens come with its last update.
        self.uses: Mapping[str, TierUse] = {}
        # By tier, where several worked; and what a cascade decided. None: it was none.
        self.joules: Mapping[str, float] = {}
        self.cascade: Mapping[str, Any] | None = None
        self.placed: pb.Placed | None = None
        self.finished: pb.Finished | None = None

    def follow(self, running: Running) -> None:
        """Note where it runs now, and what it has cost."""
        account = running.account
        self.tier = running.tier
        self.uses = account.uses
        self.joules = account.joules
        self.cascade = account.cascade

    @property
    def uses_by_tier(self) -> dict[str, TierUse]:
        """Tokens and money of every tier that worked for the answer."""
        uses = dict(self.uses)
        if self.finished is not None and self.finished.HasField("speculated"):
            return drafted_uses(self.finished) | uses
        if self.finished is not None and self.tier not in uses:
            usage = self.finished.usage
            uses[self.tier] = TierUse(usage.prompt_tokens, usage.completion_tokens)
        return uses

    def take(self, update: pb.SequenceUpdate) -> None:
        """Note what the update says besides text."""
        if update.HasField("placed"):
            self.placed = update.placed
        if update.HasField("finished"):
            self.finished = update.finished

    @property
    def mode(self) -> str:
        """How tiers worked together."""
        if self.cascade is not None:
            return "cascade"
        if self.finished is not None and self.finished.HasField("speculated"):
            return "speculative"
        return self.tier

    @property
    def joules_by_tier(self) -> dict[str, float]:
        """Energy by tier, as far as it is known."""
        known = dict(self.joules)
        if not known and self.finished is not None and self.finished.timings.HasField("joules"):
            known[self.tier] = self.finished.timings.joules
        return {tier: round(value, 4) for tier, value in known.items()}

    @property
    def finish_reason(self) -> str:
        """OpenAI's `finish_reason`."""
        reason = self.finished.reason if self.finished else pb.Finished.REASON_STOP
        return _FINISH_REASONS.get(reason, "stop")

    def extension(self) -> dict[str, Any]:
        """The `shoal` object of the response."""
        placed = self.placed or pb.Placed()
        finished = self.finished or pb.Finished()
        timings = finished.timings
        joules = timings.joules if timings.HasField("joules") else None
        uses = self.uses_by_tier
        return {
            "request_id": self.request_id,
            "tier": self.tier,
            "mode": self.mode,
            "privacy": self.privacy,
            "tokens_by_tier": tokens_by_tier(uses),
            "money_by_tier": money_by_tier(uses),
            "joules_by_tier": self.joules_by_tier,
            "usage_flags": usage_flags(uses),
            **speculative_fields(finished),
            **({} if self.cascade is None else {"cascade": dict(self.cascade)}),
            "device": placed.device_name,
            "device_id": placed.device_id,
            "device_class": placed.device_class,
            "emulated": placed.emulated,
            "reason": placed.reason,
            "attempt": placed.attempt,
            "predicted": {
                "ttft_ms": _optional(placed, "predicted_ttft_ms"),
                "tpot_ms": _optional(placed, "predicted_tpot_ms"),
                "joules": _optional(placed, "predicted_j"),
            },
            "actual": {
                "hub_queue_ms": round(placed.queue_ms, 3),
                "queue_ms": round(timings.queue_ms, 3),
                "prefill_ms": round(timings.prefill_ms, 3),
                "ttft_ms": round(timings.ttft_ms, 3),
                "tpot_ms": round(timings.tpot_ms, 3),
                "total_ms": round(timings.total_ms, 3),
            },
            "cached_tokens_by_tier": dict(finished.usage.cached_tokens_by_tier),
            "kv_restore_ms": restore_times(timings.kv_restore_ms),
            "kv_fetch": parse_decision(timings.kv_decision),
            "joules": None if joules is None else round(joules, 4),
            "joules_estimated": timings.joules_estimated,
            # Energy-delay product, J·s: by the engine's time from arrival to end.
            "edp_js": None if joules is None else round(joules * timings.total_ms / 1000, 4),
        }


def _optional(placed: pb.Placed, name: str) -> float | None:
    return round(getattr(placed, name), 3) if placed.HasField(name) else None


def response_extension(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The `shoal` object; with several choices the first one's, and all of them as `choices`."""
    first = outcomes[0].extension()
    if len(outcomes) > 1:
        first["choices"] = [outcome.extension() for outcome in outcomes]
    return first


def usage(outcomes: Sequence[Outcome], choices_per_prompt: int) -> dict[str, Any]:
    """OpenAI's `usage`: each prompt counts once, each choice's completion in full."""
    totals = [outcome.finished.usage for outcome in outcomes if outcome.finished]
    prompts = totals[::choices_per_prompt]
    prompt_tokens = sum(item.prompt_tokens for item in prompts)
    completion_tokens = sum(item.completion_tokens for item in totals)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": sum(item.cached_tokens for item in prompts),
            "audio_tokens": 0,
        },
    }
