"""One model on one simulated device: slots, prompts in the engine's order, a decode batch.

A fluid model: between two events every rate is constant, so an event costs O(slots)
whatever the number of tokens.
"""

from __future__ import annotations

import bisect
import heapq
from dataclasses import dataclass, field

from orchestrator.simulator.workload import Job
from shoal.prefill_order import AGEING_CHUNKS, most_urgent

# Tokens that the engine prefills between two decode steps: one block.
CHUNK_TOKENS = 128
_NEVER = float("inf")
# Rounding: what is left below this counts as done.
_DONE = 1e-6


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on a device. Times in ms of the virtual clock."""

    job: Job
    request_id: str
    arrived_ms: float
    admitted_ms: float = 0.0
    first_token_ms: float = 0.0
    remaining_prompt: float = 0.0
    joules_before: float = 0.0
    joules: float = 0.0
    batch_before: float = 0.0
    mean_batch: float = 0.0
    order: int = 0
    # Prompt tokens of others that the device had to compute when it was sent there.
    ahead_tokens: int = 0
    ahead_requests: int = 0


@dataclass(frozen=True, slots=True)
class Speeds:
    """True speed of a model on a device."""

    prefill_ms_per_token: float
    # Of a decode step over 1, 2, 3, ... sequences.
    step_ms: tuple[float, ...]


@dataclass(slots=True)
class EngineModel:
    """Sequences of one model. `advance` moves time, `step` makes what is due happen."""

    speeds: Speeds
    # Without a slot, next to get one first: by priority, then as they came.
    waiting: list[Sequence] = field(default_factory=list)
    # In the order in which they got their slots.
    prompts: list[Sequence] = field(default_factory=list)
    # (tokens per sequence decoded when it ends, order, sequence)
    decoding: list[tuple[float, int, Sequence]] = field(default_factory=list)
    waiting_prompt_tokens: int = 0
    _decoded: float = 0.0
    _batch_ms: float = 0.0
    _num_admitted: int = 0

    @property
    def num_running(self) -> int:
        """Sequences that hold a slot."""
        return len(self.prompts) + len(self.decoding)

    @property
    def num_held(self) -> int:
        """Sequences with and without a slot."""
        return len(self.waiting) + self.num_running

    def prompt_lengths(self) -> tuple[int, ...]:
        """Prompts that are not computed, whatever is left of them, in tokens: the hub's view."""
        return tuple([each.job.prompt_tokens for each in (*self.prompts, *self.waiting)])

    def taken_ms(self) -> tuple[float, ...]:
        """When each request came, oldest first."""
        decoding = [entry[2] for entry in self.decoding]
        return tuple(sorted([e.arrived_ms for e in (*decoding, *self.prompts, *self.waiting)]))

    def take(self, sequence: Sequence) -> None:
        """Let a request wait for a slot."""
        sequence.ahead_tokens = self.waiting_prompt_tokens
        sequence.ahead_requests = self.num_held
        bisect.insort(self.waiting, sequence, key=lambda each: -each.job.priority)
        self.waiting_prompt_tokens += sequence.job.prompt_tokens

    def admit(self, now_ms: float, joules_each: float) -> None:
        """Give waiting sequences the free slots."""
        while self.waiting and self.num_running < len(self.speeds.step_ms):
            sequence = self.waiting.pop(0)
            sequence.admitted_ms = now_ms
            sequence.remaining_prompt = sequence.job.prompt_tokens
            sequence.joules_before = joules_each
            self._num_admitted += 1
            sequence.order = self._num_admitted
            self.prompts.append(sequence)

    def rates(self, share: float) -> tuple[float, float]:
        """Prompt tokens and decode steps per ms, with this share of the device."""
        step_ms = self.speeds.step_ms[max(0, len(self.decoding) - 1)]
        if not self.prompts:
            return 0.0, share / step_ms if self.decoding else 0.0
        prefill = 1.0 / self.speeds.prefill_ms_per_token
        if not self.decoding:
            return share * prefill, 0.0
        # A chunk of a prompt and a decode step take turns.
        chunk_ms = min(CHUNK_TOKENS, self._prefilled()[0][0].remaining_prompt) / prefill
        decode_part = step_ms / (step_ms + chunk_ms)
        return share * (1 - decode_part) * prefill, share * decode_part / step_ms

    def due_in_ms(self, share: float) -> float:
        """Time to the next event at the present rates."""
        prefill_rate, decode_rate = self.rates(share)
        due = _NEVER
        if prefill_rate:
            due = min(
                sequence.remaining_prompt / (part * prefill_rate)
                for sequence, part in self._prefilled()
            )
        if decode_rate:
            due = min(due, (self.decoding[0][0] - self._decoded) / decode_rate)
        return max(0.0, due)

    def advance(self, elapsed_ms: float, share: float) -> None:
        """Move time on, no further than to the next event."""
        prefill_rate, decode_rate = self.rates(share)
        if prefill_rate:
            for sequence, part in self._prefilled():
                sequence.remaining_prompt -= part * prefill_rate * elapsed_ms
        if decode_rate:
            self._decoded += decode_rate * elapsed_ms
            self._batch_ms += len(self.decoding) * elapsed_ms

    def step(self, now_ms: float, joules_each: float) -> list[Sequence]:
        """Let prompts and sequences that are due end; returns the sequences that ended."""
        ended = []
        for sequence in [each for each in self.prompts if each.remaining_prompt <= _DONE]:
            self.prompts.remove(sequence)
            sequence.first_token_ms = now_ms
            sequence.batch_before = self._batch_ms
            self.waiting_prompt_tokens -= sequence.job.prompt_tokens
            until = self._decoded + sequence.job.completion_tokens - 1
            heapq.heappush(self.decoding, (until, sequence.order, sequence))
        while self.decoding and self.decoding[0][0] <= self._decoded + _DONE:
            sequence = heapq.heappop(self.decoding)[2]
            sequence.joules = joules_each - sequence.joules_before
            decode_ms = now_ms - sequence.first_token_ms
            if decode_ms > 0:
                sequence.mean_batch = (self._batch_ms - sequence.batch_before) / decode_ms
            ended.append(sequence)
        return ended

    def drop_all(self) -> list[Sequence]:
        """Forget every sequence: the device is gone."""
        lost = [*self.waiting, *self.prompts, *(entry[2] for entry in self.decoding)]
        self.waiting.clear()
        self.prompts.clear()
        self.decoding.clear()
        self.waiting_prompt_tokens = 0
        return lost

    def _prefilled(self) -> tuple[tuple[Sequence, float], ...]:
        """The prompts that chunks are computed of, and the share of the chunks of each.

        The first is the engine's choice, the second the oldest, which gets every fourth.
        """
        prompts = self.prompts
        if len(prompts) == 1:
            return ((prompts[0], 1.0),)
        first = prompts[
            most_urgent([(s.job.tenant, s.job.priority, s.remaining_prompt) for s in prompts])
        ]
        if first is prompts[0]:
            return ((first, 1.0),)
        part = 1.0 / AGEING_CHUNKS
        return (first, 1.0 - part), (prompts[0], part)
