"""The target's side of a drafted sequence: one pass over the drafts, and what stands."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.engine.core import EngineCore
from agent.engine.output import SampledToken
from agent.engine.request import SamplingParams
from agent.llama.choosing import NextToken
from agent.llama.context import LlamaRunner
from agent.llama.lent_slot import LentSlot
from agent.llama.sampler import logprob_of
from agent.speculative.acceptance import (
    Draft,
    Judgement,
    Probabilities,
    judge_drawn,
    judge_greedy,
)
from agent.speculative.window import LONGEST_DRAFT
from shoal.errors import Reason, ShoalError


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one pass yields: the accepted drafts, then the target's own token."""

    num_accepted: int
    chosen: tuple[SampledToken, ...]
    pass_ms: float
    num_rows: int


class VerifiedSequence:
    """Keeps a sequence's KV and sampler at the target; only on the engine's thread.

    The newest token is never in the KV: the next pass begins with it.
    """

    def __init__(
        self, core: EngineCore, runner: LlamaRunner, prompt: Sequence[int], sampling: SamplingParams
    ) -> None:
        """Raises OVERLOADED while the engine has no free slot."""
        self._slot = LentSlot(core, runner)
        self._context_tokens = runner.context_tokens
        # Greedy text must be the target's own: see `LlamaRunner.cut_invariant`.
        self._one_by_one = runner.cut_invariant is False and sampling.temperature == 0.0
        self._next = NextToken(runner.model.vocab.size, sampling, prompt, runner.context_tokens)
        self._uniform = np.random.default_rng(sampling.seed).random
        self._num_top = sampling.top_logprobs
        self._prompt = prompt
        self._newest = prompt[-1]

    def prefill(self) -> bool:
        """One chunk of the prompt; True when only its last token is left."""
        return self._slot.prefill(self._prompt, leave=1)

    def verify(self, drafts: Sequence[Draft]) -> Verdict:
        """One pass over the newest token and the drafts; with none of them one token.

        Raises DraftError for drafts that cannot be, CONTEXT_OVERFLOW at the context's end.
        """
        base = self._slot.num_computed
        if len(drafts) > LONGEST_DRAFT or base + 1 + len(drafts) > self._context_tokens:
            raise ShoalError(Reason.CONTEXT_OVERFLOW, "the drafts do not fit into the context")
        return self._each(drafts) if self._one_by_one and drafts else self._together(drafts)

    def _each(self, drafts: Sequence[Draft]) -> Verdict:
        """Passes over one row until a draft falls: what the target would have done alone."""
        began_s = time.perf_counter()
        chosen = list[SampledToken]()
        for place in range(len(drafts) + 1):
            chosen += self._together(()).chosen
            if place == len(drafts) or chosen[-1].token != drafts[place].token:
                break
        took_ms = (time.perf_counter() - began_s) * 1e3
        return Verdict(len(chosen) - 1, tuple(chosen), took_ms, len(drafts) + 1)

    def _together(self, drafts: Sequence[Draft]) -> Verdict:
        began_s = time.perf_counter()
        base = self._slot.num_computed
        tokens = [draft.token for draft in drafts]
        rows = self._slot.rows([self._newest, *tokens])
        judged = self._judge(rows, drafts)
        self._slot.keep(base + 1 + judged.num_accepted)
        stand = [*tokens[: judged.num_accepted], judged.next_token]
        self._next.accept(stand)
        self._newest = judged.next_token
        chosen = tuple(self._sampled(rows[place], token) for place, token in enumerate(stand))
        return Verdict(
            judged.num_accepted, chosen, (time.perf_counter() - began_s) * 1e3, len(tokens) + 1
        )

    def close(self) -> None:
        """Free the slot and the sampler."""
        self._next.close()
        self._slot.close()

    def _judge(self, rows: NDArray[np.float32], drafts: Sequence[Draft]) -> Judgement:
        tokens = [draft.token for draft in drafts]
        if self._next.is_greedy:
            return judge_greedy(tokens, self._next.likeliest(rows, tokens))

        def target(place: int) -> Probabilities:
            return self._next.probabilities(rows[place], tokens[:place])

        return judge_drawn(drafts, target, self._uniform)

    def _sampled(self, logits: NDArray[np.float32], token: int) -> SampledToken:
        num_top = self._num_top
        return SampledToken(token, None if num_top is None else logprob_of(logits, token, num_top))
