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
from agent.kv.codec import compose_state, parse_state, state_bytes
from agent.kv.fetching import Phase, PrefixRequest, Restored, usable_blocks
from agent.kv.layout import Geometry, StateLayoutError
from agent.kv.ledger import SeqKey
from agent.kv.selfcheck import StatePort
from agent.kv.state_reader import Bytes
from shoal.blocks import BLOCK_TOKENS, BlockSpace, block_hashes

log = structlog.get_logger()

# Fresh memory costs more than the copying, but a long prompt's is not held for good.
_KEPT_BUFFER_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request's prompt, whose prefix may be somewhere."""

    tokens: Sequence[int]
    tenant_salt: bytes
    prefill_tokens_per_s: float  # measured; decides between fetching and computing
    share: bool = True  # False: neither read from nor written to the shared tier


class PrefixCache:
    """The step loop's one handle on cached prefixes. See agent/kv/cache.py for the order."""

    def __init__(
        self,
        cache: BlockCache,
        port: StatePort,
        space: BlockSpace,
        context: tuple[Geometry, int],
    ) -> None:
        """`space`: of this model, its tenant salt left empty.

        `context`: the geometry and n_stream that `check_codec` found.
        """
        self.cache = cache
        self._port = port
        self._space = space
        self._geometry, self._n_stream = context
        self._buffer: Bytes = np.empty(0, dtype=np.uint8)

    def begin(self, seq: SeqKey, prompt: Prompt) -> Phase:
        """Look for the prompt's prefix; READY at once, or when `ready` names the sequence."""
        space = replace(self._space, tenant_salt=prompt.tenant_salt)
        request = PrefixRequest(
            seq=seq,
            hashes=block_hashes(space, prompt.tokens),
            num_usable=usable_blocks(len(prompt.tokens)),
            tenant_salt=prompt.tenant_salt,
            prefill_tokens_per_s=prompt.prefill_tokens_per_s,
            share=prompt.share,
        )
        return self.cache.begin(request)

    def ready(self) -> tuple[SeqKey, ...]:
        """Sequences whose prefix is here now; call in every step, and when woken."""
        return self.cache.poll()

    def restore(self, seq: SeqKey, slot: int) -> Restored:
        """Put a READY sequence's prefix into its slot.

        Prefill then starts at `Restored.num_tokens`, always a multiple of 128: 0 when
        there is none or llama.cpp refused it, and the slot is empty then.
        """
        restored = self.cache.take(seq)
        if not restored.blocks:
            return restored
        needed = state_bytes(self._geometry, self._n_stream, len(restored.blocks))
        buffer = self._buffer
        if len(buffer) < needed:
            buffer = np.empty(needed, dtype=np.uint8)
            if needed <= _KEPT_BUFFER_BYTES:
                self._buffer = buffer
        blob = compose_state(self._geometry, self._n_stream, slot, restored.blocks, buffer)
        if self._port.state_set(slot, blob.data) == len(blob):
            return restored
        log.error("kv_restore_refused", num_blocks=len(restored.blocks))
        return replace(restored, blocks=(), tiers=())

    def prefilled(self, seq: SeqKey, slot: int, num_tokens: int, *, is_last: bool = False) -> int:
        """Tell that the slot holds the prompt's first `num_tokens`; blocks that were exported.

        Call after every prefill chunk: blocks leave when the last full one is there
        or as soon as another sequence waits for them, and a sliding-window model's at
        every chunk. `is_last`: the prefill goes no further, all that is there leaves.
        Tokens decoded later may be in the slot too; they never leave. A sequence that
        is unknown, or whose state could not be read, exports nothing.
        """
        if seq not in self.cache:
            return 0
        table = self.cache.ledger.table(seq)
        num_blocks = min(num_tokens // BLOCK_TOKENS, len(table.hashes))
        awaited = self.cache.awaited(seq)
        complete = is_last or num_blocks == len(table.hashes)
        if not (complete or self._geometry.has_window or 0 < awaited <= num_blocks):
            return 0
        wanted = self.cache.exportable(seq, num_blocks)
        if not wanted:
            return 0
        try:
            state = parse_state(self._port.state_get(slot), slot, self._geometry)
        except StateLayoutError as error:
            log.error("kv_export_refused", fault=str(error.fault))
            # Who waits for these blocks computes them instead.
            self.cache.close(seq)
            return 0
        there = [index for index in wanted if state.has_block(index)]
        for index in there:
            self.cache.offer(seq, index, state.copy_block(index))
        return len(there)

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
        self.cache.host.unpark(seq)
        self.cache.close(seq)
