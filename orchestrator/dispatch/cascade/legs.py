"""One of those who were asked for an answer, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from orchestrator.dispatch.backend import Account, Generation
from orchestrator.dispatch.cascade.confidence import TokenFigures
from shoal.errors import Reason, ShoalError
from shoal.openai.speculative import drafted_uses
from shoal.openai.tier_use import TierUse
from shoal.v1 import inference_pb2 as pb

# Another model, or another tier, would say the same.
_OF_THE_REQUEST = frozenset(
    {
        Reason.INVALID_ARGUMENT.value,
        Reason.DEADLINE_EXCEEDED.value,
        Reason.CANCELLED.value,
        Reason.RATE_LIMITED.value,
    }
)


class Leg:
    """Follows a generation: its text, tokens, end.

    `hub_id`: by which the hub keeps its record, if a device was asked.
    """

    def __init__(self, generation: Generation, model: str, hub_id: str) -> None:
        self.generation = generation
        self.model = model
        self.hub_id = hub_id
        self.text = ""
        self.num_tokens = 0
        self.prompt_tokens = 0
        self.placed: pb.Placed | None = None
        self.finished: pb.Finished | None = None
        self.failed: pb.Failed | None = None
        # Why nobody heard it, though it has not failed; empty: it answers, or still may.
        self.given_up = ""

    @property
    def ended(self) -> bool:
        """Whether its last update has come."""
        return self.finished is not None or self.failed is not None

    @property
    def failed_code(self) -> str:
        """The failure's code; empty: none."""
        return "" if self.failed is None else ShoalError.from_wire(self.failed).reason.value

    @property
    def fault_of_the_request(self) -> bool:
        """Whether it failed for a reason that is not the tier's."""
        return self.failed_code in _OF_THE_REQUEST

    def stop(self) -> None:
        """Cancel it, unless it has ended."""
        if not self.ended:
            self.given_up = Reason.CANCELLED.value
            self.generation.cancel()

    @property
    def stopped(self) -> bool:
        """Whether it was cancelled before its end."""
        return self.given_up == Reason.CANCELLED.value

    async def take(self) -> Sequence[pb.SequenceUpdate]:
        """See `Generation.take`."""
        updates = await self.generation.take()
        for update in updates:
            if update.HasField("placed"):
                self.placed = update.placed
            if update.HasField("admitted"):
                self.prompt_tokens = update.admitted.prompt_tokens
            if update.HasField("delta"):
                self.text += update.delta.text
                self.num_tokens += len(update.delta.tokens)
            if update.HasField("finished"):
                self.finished = update.finished
            if update.HasField("failed"):
                self.failed = update.failed
        return updates

    def figures(self, updates: Sequence[pb.SequenceUpdate]) -> Iterator[TokenFigures]:
        """How sure the model was of each of the updates' tokens."""
        for update in updates:
            sure = update.delta.confidence
            for values in zip(sure.logprob, sure.entropy, sure.margin, strict=False):
                yield TokenFigures(*values)

    @property
    def use(self) -> TierUse:
        """Its tokens and money. Of an edge leg that was cancelled: what was seen of it."""
        counted = self.generation.account.uses.get(self.generation.tier)
        if counted is not None:
            return counted
        if self.finished is not None:
            usage = self.finished.usage
            return TierUse(usage.prompt_tokens, usage.completion_tokens)
        return TierUse(self.prompt_tokens, self.num_tokens)

    @property
    def uses(self) -> Mapping[str, TierUse]:
        """Its tokens and money by tier: of a drafted answer the device's and the node's."""
        own = self.generation.account.uses
        if self.finished is not None and self.finished.HasField("speculated"):
            return drafted_uses(self.finished) | own
        return own or {self.generation.tier: self.use}

    @property
    def joules(self) -> float | None:
        """Its energy; None: not known, as of one that was cut short."""
        timings = self.finished.timings if self.finished is not None else pb.Timings()
        return timings.joules if timings.HasField("joules") else None

    def told(self) -> dict[str, object]:
        """Who was asked and what it used, for answers and records; times in ms, None: unknown."""
        use, finished = self.use, self.finished
        costs = [each.cost_nanos for each in self.uses.values() if each.cost_nanos is not None]
        return {
            "model": self.model,
            "tier": self.generation.tier,
            "device": self.placed.device_name if self.placed is not None else "",
            "outcome": self.failed_code or ("finished" if finished is not None else "stopped"),
            "prompt_tokens": use.prompt_tokens,
            "completion_tokens": use.completion_tokens,
            "money": sum(costs) / 10**9 if costs else None,
            "joules": None if self.joules is None else round(self.joules, 4),
            "ttft_ms": None if finished is None else round(finished.timings.ttft_ms, 1),
            "total_ms": None if finished is None else round(finished.timings.total_ms, 1),
        }

    def count_into(self, account: Account) -> None:
        """Add what this leg used."""
        own, tier = self.generation.account, self.generation.tier
        for each, use in self.uses.items():
            if each in own.uses or use.prompt_tokens or use.completion_tokens:
                before = account.uses.get(each)
                account.uses[each] = use if before is None else _sum(before, use)
        tries = list(own.tries)
        if self.given_up and tries and not tries[-1].failed:
            tries[-1] = replace(tries[-1], failed=self.given_up)
        account.tries.extend(tries)
        if tier == "edge":
            account.hub_ids.append(self.hub_id)
            if self.given_up:
                account.given_up[self.hub_id] = self.given_up
        if self.joules is not None:
            account.joules[tier] = account.joules.get(tier, 0.0) + self.joules


def _sum(first: TierUse, second: TierUse) -> TierUse:
    """Both; of a tier that costs nothing the sum costs nothing either."""
    if not first.currency and not second.currency:
        return TierUse(
            first.prompt_tokens + second.prompt_tokens,
            first.completion_tokens + second.completion_tokens,
        )
    return first.plus(second)
