"""Whose prompt the next prefill chunk belongs to. Pure; never logs."""

from __future__ import annotations

from collections.abc import Iterable

from agent.engine.sequence import Sequence

# One of so many chunks goes to who has had a slot for longest, whatever its length and
# priority: so the oldest prompt keeps a quarter of the speed it has alone however many
# short ones come, each is the oldest some day, and a short one loses one chunk in four.
AGEING_CHUNKS = 4


class PrefillOrder:
    """Least remaining prefill first, with ageing; mutable, for one scheduler.

    A prompt of 8,191 tokens is 64 chunks. First come, first served, a later question of
    one chunk would wait for all of them though it has a slot; least remaining first
    serves it next, and delays the long prompt by one chunk.

    Priority goes before length among a tenant's own prompts, and a negative one yields
    to every tenant's: the same rule by which requests wait in the hub.
    """

    def __init__(self) -> None:
        self._since_oldest = 0

    def take(self, prefilling: Iterable[Sequence]) -> Sequence:
        """The sequence that gets the next chunk; `prefilling` in the order of getting slots.

        Raises ValueError when there is none.
        """
        candidates = list(prefilling)
        chosen = _most_urgent(candidates)
        self._since_oldest += 1
        if self._since_oldest == AGEING_CHUNKS:
            chosen = candidates[0]
        if chosen is candidates[0]:
            self._since_oldest = 0
        return chosen


def _most_urgent(candidates: list[Sequence]) -> Sequence:
    """Each tenant sends its most urgent one; of those the shortest. Ties: the oldest."""
    firsts: dict[str, Sequence] = {}
    for sequence in candidates:
        tenant = sequence.request.tenant
        first = firsts.get(tenant)
        if first is None or _among_own(sequence) < _among_own(first):
            firsts[tenant] = sequence
    return min(firsts.values(), key=_among_tenants)


def _among_own(sequence: Sequence) -> tuple[int, int]:
    return -sequence.request.priority, sequence.remaining_prefill


def _among_tenants(sequence: Sequence) -> tuple[int, int]:
    return -min(0, sequence.request.priority), sequence.remaining_prefill
