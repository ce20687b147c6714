"""Cached prefixes of the engine's sequences: when one may start, and what is kept of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Protocol

from agent.config import BLOCK_TOKENS
from agent.engine.sequence import Phase, Sequence
from agent.kv.fetching import Phase as FetchPhase
from agent.kv.ledger import SeqKey
from agent.kv.prefix_cache import PrefixCache, Prompt
from agent.kv.sharing import SharingState

# The agent kills an engine that has not ended 5 s after it was asked to.
_CLOSE_WITHIN_S = 3.5


class PrefixStore(Protocol):
    """Where prefixes come from and go to; for the thread that owns the runner."""

    def prepare(self, sequence: Sequence, prefill_tokens_per_s: float) -> bool:
        """Look for a waiting sequence's prefix; True when it may start now.

        Asked again in every step until it is true. Never blocks.
        """

    def restore(self, sequence: Sequence) -> None:
        """Put the prefix of a started sequence into its empty slot.

        Sets `num_computed` (it leaves a prompt token to compute; a multiple of 128 where
        KV depends on the cut), `cached_by_tier`, `kv_restore_ms` and `kv_decision`.
        """

    def prefilled(self, sequence: Sequence) -> None:
        """Note that a prompt chunk was computed; nothing is copied before `settle`."""

    def settle(self) -> None:
        """Copy blocks that are due out of the slots, and take in what other threads read.

        To be called between two computations.
        """

    def end(self, sequence: Sequence) -> None:
        """Forget a sequence in whatever phase; its slot, if any, is not emptied yet."""

    def park(self, sequence: Sequence) -> bool:
        """Keep the whole KV of a running sequence elsewhere; False: there is no room.

        The slot is not emptied. Of an interrupted prefill all whole blocks leave, and
        whoever waits for the rest computes it.
        """

    def resume(self, sequence: Sequence) -> bool:
        """Put a parked sequence's KV into its new slot; False: it is lost, the slot empty."""

    def next_deadline_s(self) -> float | None:
        """When, on the monotonic clock, `settle` must run though nothing woke the loop."""

    def drain_shared(self, timeout_s: float) -> bool:
        """Wait until the shared tier has what left the slots so far; on any thread."""

    def counters(self) -> Mapping[str, float]:
        """Cumulative figures and present sizes, named as the metrics are."""

    def sharing(self) -> SharingState:
        """What is done with blocks that are computed now, and why none are shared."""

    def close(self) -> None:
        """Write what is still queued, for a bounded time, and end all threads."""


class CachedPrefixes:
    """The prefix store over the paged KV cache."""

    def __init__(
        self, cache: PrefixCache, renew: Callable[[PrefixCache], None] = lambda _: None
    ) -> None:
        """`renew` is called often: it looks whether the shared tier is another one now."""
        self._cache = cache
        self._renew = renew
        self._numbers = itertools.count(1)
        self._keys: dict[Sequence, SeqKey] = {}
        self._not_ready: set[SeqKey] = set()
        self._parked: dict[Sequence, SeqKey] = {}
        # Sequences with a computed chunk whose blocks may have to leave; in order.
        self._computed: dict[Sequence, None] = {}
        # Those whose first token somebody waits for, and that nothing else holds up.
        self._urgent: set[Sequence] = set()

    def prepare(self, sequence: Sequence, prefill_tokens_per_s: float) -> bool:
        """See PrefixStore. Where only whole blocks are kept, a shorter prompt has no prefix."""
        known = self._keys.get(sequence)
        if known is not None:
            return known not in self._not_ready
        request = sequence.request
        if len(request.prompt) < BLOCK_TOKENS and not self._cache.any_length:
            return True
        self._renew(self._cache)
        key = SeqKey(next(self._numbers))
        self._keys[sequence] = key
        self._urgent.add(sequence)
        self._cache.cache.urgent(somebody_waits=True)
        prompt = Prompt(
            request.prompt, request.tenant_salt, prefill_tokens_per_s, share=request.share_blocks
        )
        if self._cache.begin(key, prompt) is FetchPhase.READY:
            return True
        self._not_ready.add(key)
        return False

    def restore(self, sequence: Sequence) -> None:
        """See PrefixStore."""
        key = self._keys.get(sequence)
        if key is None or sequence.slot is None:
            return
        restored = self._cache.restore(key, sequence.slot)
        sequence.num_computed = restored.num_tokens
        sequence.cached_by_tier = restored.tokens_by_tier()
        sequence.kv_restore_ms = {str(tier): ms for tier, ms in restored.restore_ms.items()}
        if restored.decision is not None:
            sequence.kv_decision = restored.decision.to_json()

    def prefilled(self, sequence: Sequence) -> None:
        """See PrefixStore."""
        if sequence in self._keys:
            self._computed[sequence] = None
        if not sequence.remaining_prefill:
            self._not_urgent(sequence)

    def settle(self) -> None:
        """See PrefixStore."""
        if self._computed:
            for sequence in self._computed:
                self._export(sequence)
            self._computed.clear()
        if self._not_ready:
            # Who came later may wait for blocks of a prompt that was prefilled before.
            if self._cache.any_length:
                for sequence in self._keys:
                    self._export(sequence)
            self._not_ready.difference_update(self._cache.ready())
        else:
            self._cache.ready()

    def end(self, sequence: Sequence) -> None:
        """See PrefixStore. What was computed is kept: an interrupted prefill, a reply."""
        self._not_urgent(sequence)
        parked = self._parked.pop(sequence, None)
        if parked is not None:
            self._cache.close(parked)
        key = self._keys.get(sequence)
        if key is None:
            return
        if self._cache.any_length:
            if sequence.slot is not None and sequence.num_computed:
                self._cache.ended(key, sequence.slot, sequence.computed_tokens)
        elif sequence in self._computed or sequence.phase is Phase.PREFILL:
            self._export(sequence, is_last=True)
        self._computed.pop(sequence, None)
        del self._keys[sequence]
        self._not_ready.discard(key)
        self._cache.close(key)

    def park(self, sequence: Sequence) -> bool:
        """See PrefixStore."""
        key = SeqKey(next(self._numbers))
        if sequence.slot is None or not self._cache.park(key, sequence.slot):
            return False
        if sequence.phase is Phase.PREFILL:
            self.end(sequence)
        elif self._cache.any_length and sequence in self._keys:
            self._export(sequence, is_last=True)  # nobody is to wait for a parked one
        self._parked[sequence] = key
        return True

    def resume(self, sequence: Sequence) -> bool:
        """See PrefixStore."""
        key = self._parked.pop(sequence, None)
        return (
            key is not None and sequence.slot is not None and self._cache.resume(key, sequence.slot)
        )

    def next_deadline_s(self) -> float | None:
        """See PrefixStore."""
        return self._cache.cache.next_deadline_s()

    @property
    def shared_space(self) -> str:
        """See PrefixCache."""
        return self._cache.shared_space

    def drain_shared(self, timeout_s: float) -> bool:
        """See PrefixStore."""
        return self._cache.cache.drain_shared(timeout_s)

    def counters(self) -> Mapping[str, float]:
        """See PrefixStore."""
        return self._cache.counters()

    def sharing(self) -> SharingState:
        """See PrefixStore."""
        return self._cache.sharing()

    def close(self) -> None:
        """See PrefixStore."""
        self._cache.cache.shut_down(timeout_s=_CLOSE_WITHIN_S)

    def _export(self, sequence: Sequence, *, is_last: bool = False) -> None:
        if sequence.slot is None:
            return
        key, cache = self._keys[sequence], self._cache
        if not sequence.remaining_prefill:
            is_last = is_last or cache.shares_at_once(key)
        computed = min(sequence.num_computed, sequence.num_prompt)
        cache.prefilled(key, sequence.slot, computed, is_last=is_last)

    def _not_urgent(self, sequence: Sequence) -> None:
        self._urgent.discard(sequence)
        if not self._urgent:
            self._cache.cache.urgent(somebody_waits=False)
