"""Which sequence gets a slot, and what the next step computes. Pure; never logs."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable
from dataclasses import dataclass

from agent.config import BLOCK_TOKENS
from agent.engine.policy import BatchingPolicy
from agent.engine.preemption import Preemption, find_preemption
from agent.engine.prefill_order import PrefillOrder
from agent.engine.request import RequestKey
from agent.engine.sequence import Phase, Sequence
from shoal.errors import Reason, ShoalError


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Prompt tokens [start, end) of one sequence: one llama.cpp call of its own.

    `end` is the next multiple of 128 or the end of the prompt, never anything
    else: the cut decides the bytes, and so the output.
    """

    sequence: Sequence
    start: int
    end: int

    @property
    def is_last(self) -> bool:
        """True when the first token can be sampled after it."""
        return self.end == self.sequence.num_prompt


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One token of each running sequence, in one llama.cpp call, ordered by slot.

    llama.cpp computes a run of consecutive slots in one piece and starts another
    at every gap or step back; a shuffled batch of 8 takes twice as long.
    """

    sequences: tuple[Sequence, ...]


class Scheduler:
    """Queue, slots and the choice of the next step; mutable, single-threaded."""

    def __init__(self, slots: int, max_waiting: int, policy: BatchingPolicy) -> None:
        self._policy = policy
        self._slots = slots
        self._max_waiting = max_waiting
        # Lowest first: neighbouring slots are decoded in one piece (see DecodeStep).
        self._free_slots = list(range(slots))
        # Slots of sequences that others compute: drafted or verified ones.
        self._lent: set[int] = set()
        self._sequences: dict[RequestKey, Sequence] = {}
        # ((-priority, 0 if parked else 1, arrival number), sequence), next to run first.
        self._waiting: list[tuple[tuple[int, int, int], Sequence]] = []
        self._running: list[Sequence] = []  # in the order in which they got a slot
        self._leaving: list[Sequence] = []  # ended, and their slots not yet emptied
        self._arrivals = 0
        self._chunks_since_decode = 0
        self._order = PrefillOrder()

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._waiting)

    @property
    def num_lent(self) -> int:
        """Slots that `lend_slot` gave out."""
        return len(self._lent)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Sequences that hold a slot."""
        return tuple(self._running)

    @property
    def leaving(self) -> tuple[Sequence, ...]:
        """Sequences that ended and still hold a slot."""
        return tuple(self._leaving)

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """Sequences in the queue, the next to run first."""
        return tuple(sequence for _, sequence in self._waiting)

    @property
    def frame_interval_s(self) -> float:
        """For how long new text may wait for more to be sent with it."""
        return self._policy.frame_interval_s(len(self._sequences))

    def find(self, key: RequestKey) -> Sequence | None:
        """The sequence of a request that has not ended."""
        return self._sequences.get(key)

    def keys_of_session(self, session_id: int) -> tuple[RequestKey, ...]:
        """Requests of one session that have not ended."""
        return tuple(key for key in self._sequences if key.session_id == session_id)

    def enqueue(self, sequence: Sequence, retry_after_ms: int) -> int:
        """Queue the sequence; its place in the queue, 0 when a slot is free for it.

        Raises OVERLOADED with `retry_after_ms` when the queue is full.
        """
        num_free = len(self._free_slots) + len(self._leaving)
        if len(self._waiting) >= self._max_waiting + num_free:
            raise ShoalError(
                Reason.OVERLOADED,
                f"the engine's queue is full ({self._max_waiting} requests wait); try again later",
                retry_after_ms=retry_after_ms,
            )
        place = self._queue(sequence)
        self._sequences[sequence.request.key] = sequence
        return max(0, place + 1 - num_free)

    def take_startable(self, may_start: Callable[[Sequence], bool]) -> list[Sequence]:
        """Give free slots to the queue in its order; the sequences that got one.

        One that may not start yet is passed over and keeps its place: it holds no
        slot while its prefix is on its way, and holds up nobody.
        """
        started: list[Sequence] = []
        if not self._free_slots or not self._waiting:
            return started
        kept = []
        for entry in self._waiting:
            sequence = entry[1]
            if not self._free_slots:
                kept.append(entry)
            elif sequence.phase is Phase.PARKED or may_start(sequence):
                self._place(sequence)
                started.append(sequence)
            else:
                sequence.phase = Phase.RESTORING
                kept.append(entry)
        self._waiting = kept
        return started

    def find_preemption(self, may_start: Callable[[Sequence], bool]) -> Preemption | None:
        """Who has to leave a slot for whom now; None: a slot is free, or nobody has to."""
        if self._free_slots or not self._waiting:
            return None

        def may_start_now(sequence: Sequence) -> bool:
            if sequence.phase is Phase.PARKED or may_start(sequence):
                return True
            sequence.phase = Phase.RESTORING
            return False

        return find_preemption(self._running, self.waiting, may_start_now)

    def displace(self, preemption: Preemption) -> None:
        """Give the victim's slot to the urgent one; the victim waits, parked.

        It is the next of its priority to get a slot.
        """
        victim, urgent = preemption.victim, preemption.urgent
        self._give_up_place(victim)
        victim.phase = Phase.PARKED
        self._leave_queue(urgent)
        self._place(urgent)
        self._queue(victim)

    def remove(self, sequence: Sequence) -> None:
        """End the sequence wherever it stands; its slot is free at once."""
        del self._sequences[sequence.request.key]
        if sequence.slot is None:
            self._leave_queue(sequence)
        else:
            self._give_up_place(sequence)
        sequence.phase = Phase.DONE

    def retire(self, sequence: Sequence) -> None:
        """End a running sequence, whose slot stays taken until `free`."""
        del self._sequences[sequence.request.key]
        self._running.remove(sequence)
        self._leaving.append(sequence)
        sequence.phase = Phase.DONE

    def free(self, sequence: Sequence) -> None:
        """Give a retired sequence's slot to whoever is next."""
        self._leaving.remove(sequence)
        self._free_slot(sequence)

    def next_step(self) -> PrefillChunk | DecodeStep | None:
        """What to compute now; None when nothing runs."""
        decoding = tuple(s for s in self._running if s.phase is Phase.DECODE)
        prefilling = [s for s in self._running if s.phase is Phase.PREFILL]
        if prefilling and self._policy.prefills_next(
            num_concurrent=len(self._sequences),
            num_decoding=len(decoding),
            chunks_since_decode=self._chunks_since_decode,
        ):
            self._chunks_since_decode += 1
            sequence = self._order.take(prefilling)
            start = sequence.num_computed
            boundary = (start // BLOCK_TOKENS + 1) * BLOCK_TOKENS
            return PrefillChunk(sequence, start, min(boundary, sequence.num_prompt))
        self._chunks_since_decode = 0
        return DecodeStep(tuple(sorted(decoding, key=_slot_order))) if decoding else None

    def lend_slot(self) -> int | None:
        """A slot for a sequence that the queue knows nothing of; None while all are taken."""
        if not self._free_slots:
            return None
        slot = heapq.heappop(self._free_slots)
        self._lent.add(slot)
        return slot

    def take_back(self, slot: int) -> None:
        """The lent slot is free again."""
        self._lent.remove(slot)
        heapq.heappush(self._free_slots, slot)

    def check_integrity(self) -> None:
        """Raise AssertionError when slots, queue and index disagree; for tests."""
        held = [s.slot for s in (*self._running, *self._leaving) if s.slot is not None]
        if sorted([*self._free_slots, *self._lent, *held]) != list(range(self._slots)):
            raise AssertionError(f"slots leak: free {self._free_slots}, held {held}")
        known = {s.request.key for s in (*self.running, *self.waiting)}
        if known != set(self._sequences) or len(known) != len(self._running) + len(self._waiting):
            raise AssertionError("index, queue and running set disagree")
        for sequence in self._running:
            if sequence.phase not in (Phase.PREFILL, Phase.DECODE):
                raise AssertionError(f"a running sequence is {sequence.phase}")
            if (sequence.phase is Phase.PREFILL) != (sequence.remaining_prefill > 0):
                raise AssertionError("phase and computed tokens disagree")
        for sequence in self.waiting:
            if sequence.phase not in (Phase.WAITING, Phase.RESTORING, Phase.PARKED):
                raise AssertionError(f"a waiting sequence is {sequence.phase}")
            if sequence.slot is not None:
                raise AssertionError("a waiting sequence holds a slot")

    def _queue(self, sequence: Sequence) -> int:
        """Put the sequence into the queue; its place there."""
        self._arrivals += 1
        is_new = int(sequence.phase is not Phase.PARKED)
        entry = ((-sequence.request.priority, is_new, self._arrivals), sequence)
        place = bisect.bisect(self._waiting, entry[0], key=lambda waiting: waiting[0])
        self._waiting.insert(place, entry)
        return place

    def _leave_queue(self, sequence: Sequence) -> None:
        self._waiting = [entry for entry in self._waiting if entry[1] is not sequence]

    def _place(self, sequence: Sequence) -> None:
        sequence.slot = heapq.heappop(self._free_slots)
        sequence.phase = Phase.PREFILL if sequence.remaining_prefill else Phase.DECODE
        self._running.append(sequence)

    def _give_up_place(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._free_slot(sequence)

    def _free_slot(self, sequence: Sequence) -> None:
        if sequence.slot is not None:
            heapq.heappush(self._free_slots, sequence.slot)
            sequence.slot = None


def _slot_order(sequence: Sequence) -> int:
    return -1 if sequence.slot is None else sequence.slot
