"""What a loaded model can do on this device: measured speed, batch invariance."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from agent.config import BLOCK_TOKENS
from agent.engine.request import SamplingParams
from agent.engine.runner import DecodeItem
from agent.llama.context import LlamaRunner
from shoal.kv_budget import CELL_MULTIPLE

# Two chunks: enough to be past warm-up, under half a second on two cores.
_PREFILL_TOKENS = 2 * BLOCK_TOKENS
_WARM_UP_TOKENS = 16
# No figure may cost more than this, however slow the device is.
_LIMIT_S = 1.0
_GREEDY = SamplingParams(temperature=0.0)


class Probe:
    """An ordinary prompt in slot 0 that all checks of an engine's start share.

    Computing it is most of what a start costs, so no check computes it again.
    """

    def __init__(self, runner: LlamaRunner) -> None:
        """Empty slot 0 and warm the engine up; the probe holds no token yet."""
        self.runner = runner
        self.tokens = probe_tokens(runner, min(_PREFILL_TOKENS + 1, runner.context_tokens - 1))
        self.position = 0
        # Of the last row computed.
        self.logits: NDArray[np.float32] = np.empty(0, np.float32)
        # What was computed so far, and how long it took.
        self.computed = 0
        self.seconds = 0.0
        runner.start(0, _GREEDY, ())
        warm_up = probe_tokens(runner, min(_WARM_UP_TOKENS, runner.context_tokens))
        runner.prefill(0, warm_up, 0, want_token=True)
        runner.truncate(0, 0)

    def reach(self, position: int) -> None:
        """Compute the probe's tokens up to `position`, cut as the engine cuts prompts."""
        while self.position < position:
            end = min(self.position + BLOCK_TOKENS, position)
            self.compute(end)

    def compute(self, end: int) -> None:
        """Compute from where the probe is to `end` in one chunk."""
        began_s = time.perf_counter()
        self.runner.prefill(0, self.tokens[self.position : end], self.position, want_token=True)
        self.seconds += time.perf_counter() - began_s
        self.computed += end - self.position
        self.logits = self.runner.logits(1)[0].copy()
        self.position = end

    def cut_to(self, position: int) -> None:
        """Forget the tokens from `position` on."""
        self.runner.truncate(0, position)
        self.position = min(self.position, position)

    @property
    def tokens_per_s(self) -> float:
        """The prefill speed so far."""
        return self.computed / self.seconds if self.computed else 0.0

    def close(self) -> None:
        """Leave the slot empty."""
        self.runner.clear(0)


def probe_tokens(runner: LlamaRunner, count: int) -> list[int]:
    """Ordinary tokens, spread over the vocabulary."""
    size = runner.model.vocab.size
    return [(7919 * index + 31) % size for index in range(count)]


def measure_prefill(probe: Probe) -> float:
    """Tokens a second over two whole chunks, or over what a second is enough for.

    To be asked before `is_cut_invariant`, whose chunks are not whole.
    """
    ends = range(BLOCK_TOKENS, _PREFILL_TOKENS + 1, BLOCK_TOKENS)
    for end in (min(end, len(probe.tokens)) for end in ends):
        if probe.seconds < _LIMIT_S:
            probe.reach(end)
    return probe.tokens_per_s


def measure_decode(runner: LlamaRunner) -> tuple[float, ...]:
    """Tokens a second at 1, 2, 4, … sequences together; item i is the total over 2^i.

    Takes under a second on a small model, at most some seconds on a slow device. Leaves
    the slots empty.
    """
    rates = []
    size = 1
    while size <= runner.slots:
        rate = _measure_decode(runner, size)
        rates.append(rate)
        if size / rate > _LIMIT_S:
            break  # a step of this size takes longer than all of them should
        size *= 2
    return tuple(rates)


def _measure_decode(runner: LlamaRunner, size: int, steps: int = 6) -> float:
    for slot in range(size):
        runner.start(slot, _GREEDY, ())
    runner.decode([DecodeItem(slot, 0, 31) for slot in range(size)])
    done = 0
    began_s = time.perf_counter()
    while done < steps and time.perf_counter() - began_s < _LIMIT_S:
        done += 1
        runner.decode([DecodeItem(slot, done, 31 + done) for slot in range(size)])
    rate = size * done / (time.perf_counter() - began_s)
    for slot in range(size):
        runner.clear(slot)
    return rate


def find_decode_alone_from(probe: Probe) -> int | None:
    """The position from which batched decode would change a sequence's logits.

    None when batching changes nothing. Stock llama.cpp splits the attention of a
    single sequence with 512 or more cells over its threads, and does not in a batch
    of several; the two round differently. Cells are counted in multiples of 256, so
    that the first position that can differ is 256. 0 means that no decode of
    several sequences equals a single one on this backend. The probe must be new.
    """
    runner = probe.runner
    if runner.slots == 1:
        return None
    runner.start(1, _GREEDY, ())
    limit: int | None = None
    for position in (BLOCK_TOKENS, CELL_MULTIPLE):
        if position >= len(probe.tokens):
            break
        probe.reach(position)
        if not _is_invariant_at(runner, position, probe.tokens[position]):
            limit = 0 if position < CELL_MULTIPLE else CELL_MULTIPLE
            break
    runner.clear(1)
    return limit


def is_cut_invariant(probe: Probe) -> bool:
    """Whether a prompt's KV and logits do not depend on where its prefill is cut.

    True with deploy/kernels/row_attention.inc; stock llama.cpp computes 64 rows and
    more by another algorithm than fewer. Compares whole chunks with chunks cut where
    each algorithm would be chosen, up to a chunk of one token as decode computes it.
    """
    count = min(_PREFILL_TOKENS, len(probe.tokens))
    probe.reach(count)
    logits, state = probe.logits, bytes(probe.runner.state_get(0))
    probe.cut_to(0)
    # Rows that a verifier computes in one pass among them: 2, 5 and 17.
    cuts = {2, 7, 24, 30, 31, 97, BLOCK_TOKENS, count - 70, count - 1, count}
    for end in sorted(cuts & set(range(1, count + 1))):
        probe.compute(end)
    same = bytes(probe.runner.state_get(0)) == state
    return same and bool(np.array_equal(logits, probe.logits))


def _is_invariant_at(runner: LlamaRunner, position: int, token: int) -> bool:
    item = DecodeItem(0, position, token)
    # Put back whole: a recurrent state cannot be cut.
    before = bytes(runner.state_get(0))
    alone = runner.compute_decode([item])[0].copy()
    runner.state_set(0, before)
    together = runner.compute_decode([item, DecodeItem(1, 0, token)])[0]
    equal = bool(np.array_equal(alone, together))
    runner.state_set(0, before)
    runner.truncate(1, 0)
    return equal
