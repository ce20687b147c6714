"""Who leaves his slot for whom, and the way out of it and back. Never logs.

Memory is short when every slot of the live context is taken: it is reserved at start,
so running sequences cannot outgrow it and nothing else of them grows. A preempted
sequence's KV goes to the host tier, whose blocks make room, and comes back exactly; a
prefill of the same tokens would round differently from their decode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agent.engine.prefixes import PrefixStore
from agent.engine.runner import Runner
from agent.engine.sequence import Phase, Sequence

# Tokens that a sequence computes in its slot before it may be preempted (again). Parking
# and coming back copy its KV twice, a few ms for SmolLM2's thousand tokens: at most a
# small part of the time of as many decode steps.
PROGRESS_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Preemption:
    """`victim` runs and is to leave its slot to `urgent`, which waits."""

    victim: Sequence
    urgent: Sequence


def find_preemption(
    running: Iterable[Sequence],
    waiting: Iterable[Sequence],
    may_start: Callable[[Sequence], bool],
) -> Preemption | None:
    """The next preemption when all slots are taken; None: nobody has to leave.

    `running` in the order of getting slots, `waiting` the next to run first. The victim
    has the lowest priority, of those the least recently started. `may_start` is asked
    of sequences that somebody would leave for.
    """
    parkable = [s for s in running if s.num_computed >= s.parkable_from]
    if not parkable:
        return None
    lowest = min(s.request.priority for s in parkable)
    for urgent in waiting:
        if urgent.request.priority <= lowest:
            return None
        victims = [s for s in parkable if _yields(s, urgent)]
        if victims and may_start(urgent):
            return Preemption(min(victims, key=lambda s: s.request.priority), urgent)
    return None


def _yields(running: Sequence, waiting: Sequence) -> bool:
    """Priority counts among a tenant's own requests; a negative one yields to everybody."""
    mine, other = running.request, waiting.request
    return mine.priority < other.priority and (mine.tenant == other.tenant or mine.priority < 0)


class Parking:
    """Takes sequences out of their slots and puts them back; for the core's thread."""

    def __init__(self, runner: Runner, prefixes: PrefixStore, counters: Counter[str]) -> None:
        """`counters`: of the core, which reports them."""
        self._runner = runner
        self._prefixes = prefixes
        self._counters = counters
        counters.update(preemptions=0, preempted_tokens_restored=0)

    def park(self, sequence: Sequence, now_s: float) -> bool:
        """Keep KV and sampler and empty the slot, which the caller reassigns.

        False when the host has no room for it: it runs on, and is asked again after
        some progress.
        """
        slot = sequence.held_slot
        if not self._prefixes.park(sequence):
            sequence.parkable_from = sequence.num_computed + PROGRESS_TOKENS
            self._counters["preemptions_without_room"] += 1
            return False
        sequence.sampler = self._runner.detach(slot)
        sequence.parked_s = now_s
        self._counters["preemptions"] += 1
        return True

    def resume(self, sequence: Sequence, now_s: float) -> bool:
        """Put a parked sequence into its new slot.

        An interrupted prefill whose state is refused starts anew, to the same result.
        False when a decode's is: what it computed is lost.
        """
        if sequence.sampler is None:
            raise AssertionError("a resumed sequence has its sampler")
        self._runner.attach(sequence.held_slot, sequence.sampler)
        sequence.sampler = None
        sequence.resumed(now_s)
        if self._prefixes.resume(sequence):
            self._counters["preempted_tokens_restored"] += sequence.num_computed
            return True
        self._counters["preempted_states_refused"] += 1
        sequence.num_computed = 0
        sequence.cached_by_tier = {}
        return sequence.phase is Phase.PREFILL
