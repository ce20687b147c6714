"""The host tier: blocks in this process's memory, and whole states of preempted sequences."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from agent.kv.codec import Block
from agent.kv.ledger import BlockLedger, SeqKey
from shoal.blocks import BlockHash


class HostTier:
    """Bytes of what the ledger's host index lists. One owner thread.

    Parked states come out of the same budget: blocks make room for them, since a
    preempted sequence must come back exactly and a block can be computed again.
    """

    def __init__(self, ledger: BlockLedger) -> None:
        self._ledger = ledger
        self._budget_bytes = ledger.host.budget_bytes
        self._blocks: dict[BlockHash, Block] = {}
        self._parked: dict[SeqKey, npt.NDArray[np.uint8]] = {}
        self.parked_bytes = 0

    def put(
        self, block: BlockHash, data: Block, *, of: SeqKey | None = None
    ) -> dict[BlockHash, Block]:
        """Take a block in and end its claim; what had to leave for it, with its bytes.

        A block that finds no room beside pinned ones, and beside those of sequence
        `of` that made it, is not kept.
        """
        evicted = self._ledger.stored(block, data.nbytes, of=of)
        if evicted is None:
            return {}
        left = {old: self._blocks.pop(old) for old in evicted}
        self._blocks.setdefault(block, data)
        return left

    def get(self, block: BlockHash) -> Block:
        """A block that is here; raises KeyError when it is not."""
        return self._blocks[block]

    def discard(self, block: BlockHash) -> None:
        """Drop a block that nobody has pinned; one that is not here is ignored."""
        if self._blocks.pop(block, None) is not None:
            self._ledger.host.discard(block)

    def park(self, seq: SeqKey, state: npt.NDArray[np.uint8]) -> bool:
        """Keep a preempted sequence's whole state; False when the budget has no room for it."""
        if self.parked_bytes + state.nbytes > self._budget_bytes or seq in self._parked:
            return False
        self._parked[seq] = state
        self._resize(self.parked_bytes + state.nbytes)
        return True

    def unpark(self, seq: SeqKey) -> npt.NDArray[np.uint8] | None:
        """Give the state back, once; None when it was not parked."""
        state = self._parked.pop(seq, None)
        if state is not None:
            self._resize(self.parked_bytes - state.nbytes)
        return state

    @property
    def used_bytes(self) -> int:
        """Bytes of blocks and of parked states."""
        return self._ledger.host.used_bytes + self.parked_bytes

    def check_integrity(self) -> None:
        """Raise AssertionError when the bytes held are not those the ledger lists."""
        if set(self._blocks) != set(self._ledger.host):
            raise AssertionError("the host holds other blocks than the ledger lists")
        if sum(b.nbytes for b in self._blocks.values()) != self._ledger.host.used_bytes:
            raise AssertionError("the host holds other bytes than the ledger lists")

    def _resize(self, parked_bytes: int) -> None:
        self.parked_bytes = parked_bytes
        budget = self._budget_bytes - parked_bytes
        pinned = {block for block in self._blocks if self._ledger.is_pinned(block)}
        for block in self._ledger.host.shrink(budget, pinned):
            del self._blocks[block]
