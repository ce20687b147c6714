"""Whose prompt the next prefill chunk belongs to. Pure; never logs."""

from __future__ import annotations

from collections.abc import Iterable

from agent.engine.sequence import Sequence
from shoal.prefill_order import AGEING_CHUNKS, most_urgent


class PrefillOrder:
    """Least remaining prefill first, with ageing; mutable, for one scheduler.

    A prompt of 8,191 tokens is 64 chunks. First come, first served, a later question of
    one chunk would wait for all of them though it has a slot; least remaining first
    serves it next, and delays the long prompt by one chunk.
    """

    def __init__(self) -> None:
        self._since_oldest = 0

    def take(self, prefilling: Iterable[Sequence]) -> Sequence:
        """The sequence that gets the next chunk; `prefilling` in the order of getting slots.

        Raises ValueError when there is none.
        """
        candidates = list(prefilling)
        chosen = candidates[
            most_urgent(
                [(s.request.tenant, s.request.priority, s.remaining_prefill) for s in candidates]
            )
        ]
        self._since_oldest += 1
        if self._since_oldest == AGEING_CHUNKS:
            chosen = candidates[0]
        if chosen is candidates[0]:
            self._since_oldest = 0
        return chosen
