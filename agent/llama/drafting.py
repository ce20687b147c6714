"""The draft's side of a sequence on a device; only on the engine's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.engine.core import EngineCore
from agent.engine.output import SampledToken
from agent.engine.request import GenerationRequest
from agent.llama.choosing import NextToken
from agent.llama.context import LlamaRunner
from agent.llama.lent_slot import LentSlot
from agent.llama.sampler import logprob_of
from agent.speculative.acceptance import Draft
from agent.speculative.window import LONGEST_DRAFT


class DraftedRound(NamedTuple):
    """Drafts, and the draft model's probability of each."""

    drafts: list[Draft]
    sureness: tuple[float, ...]


class DraftedSequence:
    """Keeps the draft model's KV in step with the tokens that stand."""

    def __init__(self, core: EngineCore, runner: LlamaRunner, request: GenerationRequest) -> None:
        """Raises OVERLOADED while the engine has no free slot."""
        self._slot = LentSlot(core, runner)
        sampling, prompt = request.sampling, request.prompt
        self._next = NextToken(runner.model.vocab.size, sampling, prompt, runner.context_tokens)
        # Not the verifier's numbers: whether a draft stands must not depend on what it is.
        seed = None if sampling.seed is None else (sampling.seed, 1)
        self._uniform = np.random.default_rng(seed).random
        self._num_top = sampling.top_logprobs
        self._runner = runner
        # All tokens that stand; the KV holds a leading part of them.
        self._tokens = list(request.prompt)

    @property
    def compute_s(self) -> float:
        """Seconds that were computed for it."""
        return self._slot.compute_s

    def prefill(self) -> bool:
        """One chunk of what stands; True when only its last token is left."""
        return self._slot.prefill(self._tokens, leave=1)

    def take(self, tokens: Sequence[int]) -> None:
        """Tokens that stand from now on; drafts that differ from them are taken back."""
        self._next.accept(tokens)
        self._tokens.extend(tokens)

    def draft(
        self, num_tokens: int, least_chance: float, chance_of: Callable[[float], float]
    ) -> DraftedRound:
        """Up to so many tokens after those that stand, at least one.

        Ends where the chance that all of them stand, by the product of what `chance_of` says
        for each one's probability, falls below `least_chance`.
        """
        drafts, sure = list[Draft](), list[float]()
        chance = 1.0
        rows = self._catch_up()
        while True:
            before = [draft.token for draft in drafts]
            draft, sureness = self._next.draft(rows[-1], before, self._uniform())
            drafts.append(draft)
            sure.append(sureness)
            ended = len(drafts) >= num_tokens or self._runner.is_end(draft.token)
            chance *= chance_of(sureness)
            if ended or chance < least_chance:
                return DraftedRound(drafts, tuple(sure))
            rows = self._slot.rows([draft.token])

    def settle(self, num_accepted: int, chosen: Sequence[int]) -> None:
        """After a verdict: keep the KV of the accepted drafts, go on with what was chosen."""
        self._slot.keep(len(self._tokens) + num_accepted)
        self.take(chosen)

    def alone(self) -> SampledToken:
        """One token of the draft model itself, which stands."""
        rows = self._catch_up()
        draft, _ = self._next.draft(rows[-1], (), self._uniform())
        num_top = self._num_top
        logprob = None if num_top is None else logprob_of(rows[-1], draft.token, num_top)
        self.take([draft.token])
        return SampledToken(draft.token, logprob)

    def _catch_up(self) -> NDArray[np.float32]:
        """Compute what stands and is not in the KV yet; the logits of it, the last one last.

        Drafts without a verdict, as when the verifier was lost, are taken back first.
        """
        self._slot.keep(len(self._tokens) - 1)
        while len(self._tokens) - self._slot.num_computed > LONGEST_DRAFT and not self.prefill():
            pass
        return self._slot.rows(self._tokens[self._slot.num_computed :])

    def close(self) -> None:
        """Free the slot and the sampler."""
        self._next.close()
        self._slot.close()
