"""Who holds which block, who needs it, and who is about to make it.

Pure: no bytes, no I/O, no clock. A sequence opens a block table over its
prompt's hashes; leading blocks that the host tier holds are matched and pinned
until the sequence has copied them; the rest it claims, so that a second
sequence with the same cold prefix waits instead of computing it again. A claim
ends when the block is stored or its sequence leaves; those who waited plan anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NewType

from agent.kv.lru import TierIndex
from shoal.blocks import BlockHash

SeqKey = NewType("SeqKey", int)


@dataclass(slots=True)
class BlockTable:
    """A sequence's ordered blocks: `hashes[:num_matched]` are on the host for it."""

    hashes: tuple[BlockHash, ...]
    num_usable: int  # leading blocks that may be restored: one token must stay to prefill
    num_matched: int = 0
    pinned: bool = True  # matched blocks are held until they are taken
    claims: set[BlockHash] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Wait:
    """The next block is being made by another sequence."""

    owner: SeqKey
    until_block: int  # blocks of the owner's table that the waiting one shares and needs


class BlockLedger:
    """The one mutable record of tables, pins, claims and both local tiers."""

    def __init__(self, host_budget_bytes: int, disk_budget_bytes: int) -> None:
        self.host = TierIndex(host_budget_bytes)
        self.disk = TierIndex(disk_budget_bytes)
        self._tables: dict[SeqKey, BlockTable] = {}
        self._pins: Counter[BlockHash] = Counter()
        self._claimed_by: dict[BlockHash, SeqKey] = {}
        self._waits: dict[SeqKey, Wait] = {}

    def open(self, seq: SeqKey, hashes: Sequence[BlockHash], num_usable: int) -> None:
        """Start a sequence's table. Raises ValueError when it has one or the numbers disagree."""
        if seq in self._tables:
            raise ValueError(f"sequence {seq} has a table")
        if not 0 <= num_usable <= len(hashes):
            raise ValueError(f"{num_usable} usable blocks of {len(hashes)}")
        self._tables[seq] = BlockTable(tuple(hashes), num_usable)

    def extend(self, seq: SeqKey, hashes: Sequence[BlockHash]) -> None:
        """Append blocks that the sequence computed beyond its prompt; they are not claimed."""
        table = self._tables[seq]
        table.hashes = (*table.hashes, *hashes)

    def match(self, seq: SeqKey) -> int:
        """Pin every further leading block that the host holds; how many are matched in all."""
        table = self._tables[seq]
        self._waits.pop(seq, None)
        while table.pinned and table.num_matched < table.num_usable:
            block = table.hashes[table.num_matched]
            if block not in self.host:
                break
            self._pins[block] += 1
            table.num_matched += 1
        return table.num_matched

    def claim(self, seq: SeqKey) -> Wait | None:
        """Claim the blocks after the matched ones, or wait for the sequence that makes the next.

        Claims stop before the first block that another sequence has claimed.
        """
        table = self._tables[seq]
        for index in range(table.num_matched, len(table.hashes)):
            block = table.hashes[index]
            owner = self._claimed_by.get(block, seq)
            if owner != seq:
                if index == table.num_matched and index < table.num_usable:
                    wait = Wait(owner, self._shared_claims(table, owner))
                    self._waits[seq] = wait
                    return wait
                break
            if block not in self.host:
                self._claimed_by[block] = seq
                table.claims.add(block)
        self._waits.pop(seq, None)
        return None

    def awaited_blocks(self, owner: SeqKey) -> int:
        """Leading blocks of `owner`'s table that some other sequence waits for; 0: none."""
        return max((w.until_block for w in self._waits.values() if w.owner == owner), default=0)

    def stored(
        self, block: BlockHash, num_bytes: int, *, of: SeqKey | None = None
    ) -> tuple[BlockHash, ...] | None:
        """The host holds (or was offered) this block; the blocks that left for it.

        Ends its claim either way. None: no room beside what is pinned; the block was
        not taken in. The other blocks of its own sequence, `of` or who claimed it, do
        not leave for it: without those before it, it would be worth nothing.
        """
        owner = self._claimed_by.pop(block, None)
        if owner is not None:
            self._tables[owner].claims.discard(block)
        maker = owner if of is None else of
        if maker is None:
            return self.host.admit(block, num_bytes, self._pins)
        return self.host.admit(block, num_bytes, {*self._pins, *self._tables[maker].hashes})

    def taken(self, seq: SeqKey) -> None:
        """The sequence has copied its matched blocks; the host may evict them again."""
        table = self._tables[seq]
        if table.pinned:
            self._unpin(table)

    def close(self, seq: SeqKey) -> tuple[SeqKey, ...]:
        """End the table, its pins and its claims; the sequences that waited for it.

        Counts as the use of its blocks, the last one first: so a prefix is evicted
        from its end, and what is left of it can still be restored.
        """
        table = self._tables.pop(seq)
        for block in reversed(table.hashes):
            self.host.touch(block)
            self.disk.touch(block)
        if table.pinned:
            self._unpin(table)
        for block in table.claims:
            del self._claimed_by[block]
        self._waits.pop(seq, None)
        return self.waiting_for(seq)

    def waiting_for(self, owner: SeqKey) -> tuple[SeqKey, ...]:
        """The sequences that wait for `owner`."""
        return tuple(seq for seq, wait in self._waits.items() if wait.owner == owner)

    def unblocked(self) -> tuple[SeqKey, ...]:
        """Sequences that wait for blocks whose owner no longer claims the last of them."""
        return tuple(
            seq
            for seq, wait in self._waits.items()
            if self._claimed_by.get(self._tables[seq].hashes[wait.until_block - 1]) != wait.owner
        )

    def table(self, seq: SeqKey) -> BlockTable:
        """The sequence's table; to read only. Raises KeyError without one."""
        return self._tables[seq]

    @property
    def num_tables(self) -> int:
        """Open tables."""
        return len(self._tables)

    def is_pinned(self, block: BlockHash) -> bool:
        """True while some sequence is about to copy the block from the host."""
        return block in self._pins

    def check_integrity(self) -> None:
        """Raise AssertionError when tables, pins, claims and tiers disagree."""
        self.host.check_integrity()
        self.disk.check_integrity()
        pins: Counter[BlockHash] = Counter()
        for seq, table in self._tables.items():
            if not 0 <= table.num_matched <= table.num_usable <= len(table.hashes):
                raise AssertionError(f"table of {seq} matched more than it may use")
            if table.pinned:
                pins.update(table.hashes[: table.num_matched])
            if any(self._claimed_by.get(block) != seq for block in table.claims):
                raise AssertionError(f"a claim of {seq} belongs to another")
        if pins != self._pins:
            raise AssertionError("pins are not what the tables hold")
        if any(block not in self.host for block in pins):
            raise AssertionError("a pinned block left the host")
        if sum(len(table.claims) for table in self._tables.values()) != len(self._claimed_by):
            raise AssertionError("a claim without a table")
        for seq, wait in self._waits.items():
            if seq not in self._tables or wait.owner == seq:
                raise AssertionError(f"{seq} waits without a table or for itself")
        if self.disk.used_bytes > self.disk.budget_bytes:
            raise AssertionError("disk over budget")

    def _shared_claims(self, table: BlockTable, owner: SeqKey) -> int:
        index = table.num_matched
        while index < table.num_usable and self._claimed_by.get(table.hashes[index]) == owner:
            index += 1
        return index

    def _unpin(self, table: BlockTable) -> None:
        table.pinned = False
        for block in table.hashes[: table.num_matched]:
            self._pins[block] -= 1
            if not self._pins[block]:
                del self._pins[block]
