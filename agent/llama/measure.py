"""What a loaded model can do on this device: measured speed, batch invariance."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import numpy as np

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


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """Tokens a second; `decode_batch[i]` is the total over 2^i sequences."""

    prefill: float
    decode_batch: tuple[float, ...]


def measure_speed(runner: LlamaRunner) -> MeasuredSpeed:
    """Time prefill of one sequence and decode at 1, 2, 4, … sequences; leaves slots empty.

    Takes about a second on a small model, at most some seconds on a slow device.
    """
    prefill = _measure_prefill(runner)
    rates = []
    size = 1
    while size <= runner.slots:
        rate = _measure_decode(runner, size)
        rates.append(rate)
        if size / rate > _LIMIT_S:
            break  # a step of this size takes longer than all of them should
        size *= 2
    return MeasuredSpeed(prefill, tuple(rates))


def probe_tokens(runner: LlamaRunner, count: int) -> list[int]:
    """Ordinary tokens, spread over the vocabulary."""
    size = runner.model.vocab.size
    return [(7919 * index + 31) % size for index in range(count)]


def _measure_prefill(runner: LlamaRunner) -> float:
    runner.start(0, _GREEDY, ())
    warm_up = probe_tokens(runner, min(_WARM_UP_TOKENS, runner.context_tokens))
    runner.prefill(0, warm_up, 0, want_token=True)
    runner.truncate(0, 0)
    tokens = probe_tokens(runner, min(_PREFILL_TOKENS, runner.context_tokens - 1))
    done = 0
    began_s = time.perf_counter()
    while done < len(tokens) and time.perf_counter() - began_s < _LIMIT_S:
        chunk = tokens[done : done + BLOCK_TOKENS]
        runner.prefill(0, chunk, done, want_token=False)
        done += len(chunk)
    rate = done / (time.perf_counter() - began_s)
    runner.clear(0)
    return rate


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


def find_decode_alone_from(runner: LlamaRunner) -> int | None:
    """The position from which batched decode would change a sequence's logits.

    None when batching changes nothing. Stock llama.cpp splits the attention of a
    single sequence with 512 or more cells over its threads, and does not in a batch
    of several; the two round differently. Cells are counted in multiples of 256, so
    that the first position that can differ is 256. 0 means that no decode of
    several sequences equals a single one on this backend.
    """
    if runner.slots == 1:
        return None
    runner.start(0, _GREEDY, ())
    runner.start(1, _GREEDY, ())
    tokens = probe_tokens(runner, min(CELL_MULTIPLE + 1, runner.context_tokens - 1))
    limit: int | None = None
    for position in (BLOCK_TOKENS, CELL_MULTIPLE):
        if position >= len(tokens):
            break
        for start in range(position - BLOCK_TOKENS, position, BLOCK_TOKENS):
            runner.prefill(0, tokens[start : start + BLOCK_TOKENS], start, want_token=False)
        if not _is_invariant_at(runner, position, tokens[position]):
            limit = 0 if position < CELL_MULTIPLE else CELL_MULTIPLE
            break
    runner.clear(0)
    runner.clear(1)
    return limit


def is_cut_invariant(runner: LlamaRunner) -> bool:
    """Whether a prompt's KV and logits do not depend on where its prefill is cut.

    True with deploy/kernels/row_attention.inc; stock llama.cpp computes 64 rows and
    more by another algorithm than fewer. Compares whole chunks with chunks cut where
    each algorithm would be chosen, up to a chunk of one token as decode computes it.
    """
    count = min(2 * BLOCK_TOKENS, runner.context_tokens - 1)
    tokens = probe_tokens(runner, count)
    whole = [*range(0, count, BLOCK_TOKENS), count]
    # Rows that a verifier computes in one pass among them: 2, 5 and 17.
    cuts = {*whole, 2, 7, 24, 30, 31, 97, count - 70, count - 1}
    cut = sorted(cuts & set(range(count + 1)))
    runner.start(0, _GREEDY, ())
    states = []
    for ends in (whole, cut):
        runner.truncate(0, 0)
        for start, end in itertools.pairwise(ends):
            runner.prefill(0, tokens[start:end], start, want_token=True)
        states.append((runner.logits(1)[0].copy(), bytes(runner.state_get(0))))
    runner.clear(0)
    (logits, state), (cut_logits, cut_state) = states
    return state == cut_state and bool(np.array_equal(logits, cut_logits))


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
