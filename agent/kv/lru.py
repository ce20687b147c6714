"""One tier's books: which blocks it holds, oldest use first, within a byte budget."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator

from shoal.blocks import BlockHash


class TierIndex:
    """Pure: moves no bytes. Whoever owns the tier carries out what `admit` returns."""

    def __init__(self, budget_bytes: int) -> None:
        if budget_bytes < 0:
            raise ValueError("budget_bytes must not be negative")
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.num_evictions = 0
        self._sizes: OrderedDict[BlockHash, int] = OrderedDict()

    def __contains__(self, block: BlockHash) -> bool:
        return block in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[BlockHash]:
        """Blocks, the one unused for longest first."""
        return iter(self._sizes)

    def admit(
        self, block: BlockHash, num_bytes: int, pinned: Collection[BlockHash] = ()
    ) -> tuple[BlockHash, ...] | None:
        """Enter a block as the most recently used; the blocks that had to leave for it.

        None, and nothing changed, when it does not fit beside the pinned ones. A
        block that is here already counts as used.
        """
        if block in self._sizes:
            self.touch(block)
            return ()
        evicted = self._room_for(num_bytes, pinned)
        if evicted is None:
            return None
        for old in evicted:
            self.used_bytes -= self._sizes.pop(old)
        self.num_evictions += len(evicted)
        self._sizes[block] = num_bytes
        self.used_bytes += num_bytes
        return evicted

    def touch(self, block: BlockHash) -> None:
        """Count a use; a block that is not here is ignored."""
        if block in self._sizes:
            self._sizes.move_to_end(block)

    def discard(self, block: BlockHash) -> bool:
        """Forget a block; False when it was not here."""
        num_bytes = self._sizes.pop(block, None)
        if num_bytes is None:
            return False
        self.used_bytes -= num_bytes
        return True

    def shrink(
        self, budget_bytes: int, pinned: Collection[BlockHash] = ()
    ) -> tuple[BlockHash, ...]:
        """Set a new budget; the blocks that leave for it (pinned ones stay, even over it)."""
        self.budget_bytes = budget_bytes
        leaving: list[BlockHash] = []
        excess = self.used_bytes - budget_bytes
        for block, num_bytes in self._sizes.items():
            if excess <= 0:
                break
            if block not in pinned:
                leaving.append(block)
                excess -= num_bytes
        for block in leaving:
            self.discard(block)
        self.num_evictions += len(leaving)
        return tuple(leaving)

    def check_integrity(self) -> None:
        """Raise AssertionError when the books do not add up."""
        if self.used_bytes != sum(self._sizes.values()):
            raise AssertionError(f"{self.used_bytes} bytes booked, not the sum of the blocks")
        if any(size <= 0 for size in self._sizes.values()):
            raise AssertionError("a block of no bytes")

    def _room_for(
        self, num_bytes: int, pinned: Collection[BlockHash]
    ) -> tuple[BlockHash, ...] | None:
        excess = self.used_bytes + num_bytes - self.budget_bytes
        leaving: list[BlockHash] = []
        for block, size in self._sizes.items():
            if excess <= 0:
                break
            if block not in pinned:
                leaving.append(block)
                excess -= size
        return tuple(leaving) if excess <= 0 else None
