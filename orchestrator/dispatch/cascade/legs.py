"""One of those who were asked for an answer, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.dispatch.backend import Account, Generation
from orchestrator.dispatch.cascade.confidence import TokenFigures
from shoal.errors import Reason, ShoalError
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
    """Follows a generation: its text, tokens, end."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.text = ""
        self.num_tokens = 0
        self.prompt_tokens = 0
        self.placed: pb.Placed | None = None
        self.finished: pb.Finished | None = None
        self.failed: pb.Failed | None = None

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

    def count_into(self, account: Account) -> None:
        """Add what this leg used. An edge leg that was cancelled: what was seen of it."""
        own = self.generation.account
        uses = dict(own.uses)
        tier = self.generation.tier
        if tier not in uses:
            if self.finished is not None:
                usage = self.finished.usage
                uses[tier] = TierUse(usage.prompt_tokens, usage.completion_tokens)
            elif self.num_tokens or self.prompt_tokens:
                uses[tier] = TierUse(self.prompt_tokens, self.num_tokens)
        for name, use in uses.items():
            before = account.uses.get(name)
            account.uses[name] = use if before is None else _sum(before, use)
        account.tries.extend(own.tries)
        timings = self.finished.timings if self.finished is not None else pb.Timings()
        if timings.HasField("joules"):
            account.joules[tier] = account.joules.get(tier, 0.0) + timings.joules


def _sum(first: TierUse, second: TierUse) -> TierUse:
    """Both; of a tier that costs nothing the sum costs nothing either."""
    if not first.currency and not second.currency:
        return TierUse(
            first.prompt_tokens + second.prompt_tokens,
            first.completion_tokens + second.completion_tokens,
        )
    return first.plus(second)
