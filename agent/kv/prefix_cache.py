"""Prefix reuse as the engine's step loop sees it: tokens and slots in, restored tokens out.

Joins the block cache, which knows no llama.cpp, with the state codec. For the
owner thread of the context alone. Only `restore`, `prefilled`, `park` and
`resume` touch the context, each for milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import structlog

from agent.kv.cache import BlockCache
from agent.kv.codec import (
    SequenceState,
    compose_state,
    cut_block,
    parse_state,
    state_bytes,
)
from agent.kv.fetching import Phase, PrefixRequest, Restored, usable_blocks
from agent.kv.layout import Geometry, StateLayoutError
from agent.kv.ledger import SeqKey
from agent.kv.redis_tier import SharedTier
from agent.kv.seal import Sealer
from agent.kv.selfcheck import StatePort
from agent.kv.sharing import SharedTierConfig, SharingState
from agent.kv.tail_files import MIN_TAIL_TOKENS
from shoal.blocks import BLOCK_TOKENS, BlockHash, BlockSpace, block_hashes

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request's prompt, whose prefix may be somewhere."""

    tokens: Sequence[int]
    tenant_salt: bytes
    prefill_tokens_per_s: float  # measured; decides between fetching and computing
    share: bool = True  # False: neither read from nor written to the shared tier


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a sequence's hashes are made from."""

    space: BlockSpace
    tokens: Sequence[int]

    def parent(self, hashes: Sequence[BlockHash]) -> BlockHash:
        """What goes before a tail behind these blocks; the tenant's own without any."""
        return hashes[-1] if hashes else BlockHash(self.space.key())


class PrefixCache:
    """The step loop's one handle on cached prefixes. See agent/kv/cache.py for the order."""

    def __init__(
        self,
        cache: BlockCache,
        port: StatePort,
        space: BlockSpace,
        context: tuple[Geometry, int],
        *,
        any_length: bool = False,
    ) -> None:
        """`space`: of this model, its tenant salt left empty.

        `context`: the geometry and n_stream that `check_codec` found. `any_length`: KV
        depends neither on where prefill is cut nor on decode; a window's rows, which
        are gone when a sequence ends, are nevertheless kept as whole blocks only.
        """
        self.cache = cache
        self._port = port
        self._space = space
        self._geometry, self._n_stream = context
        keeps_tails = any_length and not self._geometry.has_window
        self._tails = cache.open_tails() if keeps_tails else None
        self._asked: dict[SeqKey, _Asked] = {}

    @property
    def any_length(self) -> bool:
        """True when prefixes of any length are kept and found, replies included."""
        return self._tails is not None

    @property
    def shared_space(self) -> str:
        """Names blocks that other devices could use in the shared tier, in hex; empty: none."""
        return self._space.key().hex() if self.cache.shares else ""

    def shares_at_once(self, seq: SeqKey) -> bool:
        """Whether other devices could use this prompt's blocks as soon as it is prefilled."""
        return self.cache.shares_at_once(seq)

    def sharing(self) -> SharingState:
        """What is done with blocks that are computed now."""
        return self.cache.sharing()

    def use_shared(self, config: SharedTierConfig | None, fleet_secret: bytes) -> None:
        """Share with these terms from now on; None: nothing."""
        shared = None
        if config is not None:
            shared = SharedTier(config, Sealer(fleet_secret, self._geometry))
        self.cache.use_shared(shared)

    def counters(self) -> dict[str, float]:
        """Those of the block cache and of the tails."""
        figures = self.cache.counters()
        if self._tails is not None:
            figures.update(self._tails.counts)
        return figures

    def begin(self, seq: SeqKey, prompt: Prompt) -> Phase:
        """Look for the prompt's prefix; READY at once, or when `ready` names the sequence."""
        space = replace(self._space, tenant_salt=prompt.tenant_salt)
        self._asked[seq] = _Asked(space, prompt.tokens)
        request = PrefixRequest(
            seq=seq,
            hashes=block_hashes(space, prompt.tokens),
            num_usable=usable_blocks(len(prompt.tokens)),
            tenant_salt=prompt.tenant_salt,
            prefill_tokens_per_s=prompt.prefill_tokens_per_s,
            share=prompt.share,
            tokens=prompt.tokens,
            root=BlockHash(space.key()),
        )
        return self.cache.begin(request)

    def ready(self) -> tuple[SeqKey, ...]:
        """Sequences whose prefix is here now; call in every step, and when woken."""
        return self.cache.poll()

    def restore(self, seq: SeqKey, slot: int) -> Restored:
        """Put a READY sequence's prefix into its slot.

        Prefill then starts at `Restored.num_tokens`, without `any_length` a multiple of
        128: 0 when there is none or llama.cpp refused it, and the slot is empty then.
        """
        since_ms = self.cache.now_ms()
        restored = self._with_tail(seq, self.cache.take(seq))
        if not restored.num_tokens:
            return restored
        blocks = restored.blocks
        if restored.tail is not None:
            blocks = (*blocks, restored.tail)
        needed = state_bytes(self._geometry, self._n_stream, restored.num_tokens)
        buffer = np.frombuffer(self._port.state_buffer(needed), dtype=np.uint8)
        blob = compose_state(self._geometry, self._n_stream, slot, blocks, buffer)
        if self._port.state_set(slot, blob.data) == len(blob):
            return replace(restored, restore_ms=self.cache.restored(seq, since_ms))
        log.error("kv_restore_refused", num_tokens=restored.num_tokens)
        return replace(restored, blocks=(), tiers=(), tail=None, num_tail_tokens=0)

    def prefilled(self, seq: SeqKey, slot: int, num_tokens: int, *, is_last: bool = False) -> int:
        """Tell that the slot holds the prompt's first `num_tokens`; blocks that were exported.

        Call after every prefill chunk: blocks leave when the last full one is there
        or as soon as another sequence waits for them, and a sliding-window model's at
        every chunk. With `any_length` those that nobody waits for leave with the rest,
        when the sequence has `ended`: one copy, not two. `is_last`: the prefill goes no
        further, all that is there leaves. Tokens decoded later may be in the slot too;
        they do not leave here. A sequence that is unknown, or whose state could not be
        read, exports nothing.
        """
        if seq not in self.cache:
            return 0
        table = self.cache.ledger.table(seq)
        num_blocks = min(num_tokens // BLOCK_TOKENS, len(table.hashes))
        awaited = self.cache.awaited(seq)
        complete = is_last or (num_blocks == len(table.hashes) and not self.any_length)
        if not (complete or self._geometry.has_window or 0 < awaited <= num_blocks):
            return 0
        wanted = self.cache.exportable(seq, num_blocks)
        state = self._state(seq, slot) if wanted else None
        return 0 if state is None else self._export(seq, state, wanted)

    def ended(self, seq: SeqKey, slot: int, tokens: Sequence[int]) -> int:
        """Keep what the slot holds of a sequence that ends; whole blocks that were exported.

        `tokens`: all whose KV is there, of the prompt and decoded ones. What follows the
        last whole block is kept as a partial one. Copies nothing without `any_length`,
        or where fewer than 16 tokens would be new.
        """
        if self._tails is None or seq not in self.cache:
            return 0
        asked, table = self._asked[seq], self.cache.ledger.table(seq)
        hashes = block_hashes(asked.space, tokens, table.hashes)
        self.cache.ledger.extend(seq, hashes[len(table.hashes) :])
        wanted = self.cache.exportable(seq, len(hashes))
        tail, parent = tokens[len(hashes) * BLOCK_TOKENS :], asked.parent(hashes)
        keeps_tail = self._tails.num_missing(parent, tail) >= MIN_TAIL_TOKENS
        state = self._state(seq, slot) if wanted or keeps_tail else None
        if state is None:
            return 0
        self._asked[seq] = replace(asked, tokens=tokens)
        num_exported = self._export(seq, state, wanted)
        if keeps_tail:
            start = len(tokens) - len(tail)
            copy = state.copy_tokens(range(start, len(tokens)))
            self._tails.keep(seq, parent, tail, (copy, asked.space.tenant_salt))
        return num_exported

    def _state(self, seq: SeqKey, slot: int) -> SequenceState | None:
        """The slot's state; None when it cannot be read, and the sequence is closed then."""
        try:
            return parse_state(self._port.state_get(slot), slot, self._geometry)
        except StateLayoutError as error:
            log.error("kv_export_refused", fault=str(error.fault))
            # Who waits for these blocks computes them instead.
            self.cache.close(seq)
            return None

    def _export(self, seq: SeqKey, state: SequenceState, wanted: Sequence[int]) -> int:
        there = [index for index in wanted if state.has_block(index)]
        for index in there:
            self.cache.offer(seq, index, state.copy_block(index))
        self._note(seq, there)
        return len(there)

    def _with_tail(self, seq: SeqKey, restored: Restored) -> Restored:
        """Add rows of a block that goes on like the prompt where its whole blocks end."""
        if self._tails is None:
            return restored
        num_blocks = len(restored.blocks)
        self._note(seq, range(num_blocks))
        asked, hashes = self._asked[seq], self.cache.ledger.table(seq).hashes[:num_blocks]
        start = num_blocks * BLOCK_TOKENS
        # The prompt's last token is always prefilled: the first one is sampled after it.
        stop = min(start + BLOCK_TOKENS, len(asked.tokens)) - 1
        found = self._tails.find(asked.parent(hashes), asked.tokens[start:stop])
        if found is None:
            return restored
        block, num_tokens = found
        tail = cut_block(self._geometry, block, num_tokens)
        return replace(restored, tail=tail, num_tail_tokens=num_tokens)

    def _note(self, seq: SeqKey, indices: Sequence[int]) -> None:
        """Remember by which tokens these whole blocks continue the ones before them."""
        if self._tails is None:
            return
        asked, hashes = self._asked[seq], self.cache.ledger.table(seq).hashes
        for index in indices:
            start = index * BLOCK_TOKENS
            tokens = asked.tokens[start : start + BLOCK_TOKENS]
            self._tails.note(asked.parent(hashes[:index]), hashes[index], tokens)

    def park(self, seq: SeqKey, slot: int) -> bool:
        """Keep the whole state of a sequence that is preempted; False: no room, let it run on.

        The slot is not cleared. What was decoded comes back exactly, which a prefill
        of the same tokens would not; sampler and text stay with the caller.
        """
        state = np.array(np.frombuffer(self._port.state_get(slot), dtype=np.uint8))
        return self.cache.host.park(seq, state)

    def resume(self, seq: SeqKey, slot: int) -> bool:
        """Put a parked sequence into a slot, not necessarily its old one.

        False when it was not parked or llama.cpp refused its state: fail the sequence.
        """
        state = self.cache.host.unpark(seq)
        return state is not None and self._port.state_set(slot, state.data) == len(state)

    def close(self, seq: SeqKey) -> None:
        """Forget the sequence, parked or not; harmless for one that is unknown."""
        self._asked.pop(seq, None)
        self.cache.host.unpark(seq)
        self.cache.close(seq)
