"""A sequence in a lent slot: prompt in, rows computed, rejected ones taken back."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agent.config import BLOCK_TOKENS
from agent.engine.core import EngineCore
from agent.engine.request import SamplingParams
from agent.llama.context import LlamaRunner


class LentSlot:
    """Only on the engine's thread. Counts its computing with the engine's."""

    def __init__(self, core: EngineCore, runner: LlamaRunner) -> None:
        """Raises OVERLOADED while all slots are taken."""
        self._core = core
        self._runner = runner
        self._slot = core.lending.lend()
        runner.start(self._slot, SamplingParams(temperature=0.0), ())
        self.num_computed = 0
        self.compute_s = 0.0

    def prefill(self, prompt: Sequence[int], *, leave: int = 0) -> bool:
        """One chunk of the prompt without its last `leave` tokens; True when that is done.

        Cut where the step loop would cut it.
        """
        start, stop = self.num_computed, len(prompt) - leave
        end = min((start // BLOCK_TOKENS + 1) * BLOCK_TOKENS, stop)
        if start < end:
            began_s = time.monotonic()
            self._runner.prefill(self._slot, prompt[start:end], start, want_token=False)
            self._count(end - start, began_s)
        return end >= stop

    def rows(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Put tokens after what is there; their logits, valid until the next computation."""
        began_s = time.monotonic()
        logits = self._runner.compute_rows(self._slot, tokens, self.num_computed)
        self._count(len(tokens), began_s)
        return logits

    def keep(self, num_tokens: int) -> None:
        """Take back what is beyond so many tokens."""
        if num_tokens < self.num_computed:
            self._runner.truncate(self._slot, num_tokens)
            self.num_computed = num_tokens

    def close(self) -> None:
        """Give the slot back."""
        self._core.lending.take_back(self._slot)

    def _count(self, num_tokens: int, began_s: float) -> None:
        spent_s = time.monotonic() - began_s
        self.num_computed += num_tokens
        self.compute_s += spent_s
        self._core.lending.compute_s += spent_s
