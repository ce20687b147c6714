"""Prefixes of any length: by which tokens a prefix goes on, and partial blocks.

Only for an engine whose KV does not depend on where its prefill was cut. A prompt
that leaves another's path within a block takes that block's first rows: of a whole
block, or of a partial one that holds what a sequence had after its last whole block.
Partial blocks lie in host memory and on disk, in the same books as whole ones, but not
in the shared tier: who goes on with a conversation is sent to the device that has it.
"""

from __future__ import annotations

import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agent.kv.codec import Block
from agent.kv.host import HostTier
from agent.kv.ledger import BlockLedger, SeqKey
from agent.kv.lru import TierIndex
from agent.kv.shelf import DiskShelf
from agent.kv.tail_files import (
    MAX_BRANCHES,
    MIN_TAIL_TOKENS,
    Search,
    WantedTail,
    num_common,
    tail_name,
)
from shoal.blocks import BLOCK_TOKENS, BlockHash

# Blocks that left the host are forgotten once so many more are remembered than are there.
_SWEEP_SLACK = 256


@dataclass(frozen=True, slots=True)
class Branch:
    """One continuation of a prefix, at most a block long."""

    block: BlockHash
    tokens: array.array[int]

    @property
    def is_partial(self) -> bool:
        """True when only its tokens name it: no table holds its hash."""
        return len(self.tokens) < BLOCK_TOKENS


class Branches:
    """Continuations by the hash of what is before them. Pure.

    The parent of a prompt's first tokens is its block space's key, so that no
    tenant meets another's.
    """

    def __init__(self) -> None:
        self._by_parent: dict[BlockHash, list[Branch]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(
        self, parent: BlockHash, block: BlockHash, tokens: Sequence[int]
    ) -> tuple[BlockHash, ...]:
        """Remember a continuation as the newest; partial blocks that are of no more use.

        Those are the ones it begins with, and what there is no place for.
        """
        known = self._by_parent.setdefault(parent, [])
        new = Branch(block, array.array("I", tokens))
        dropped = [b for b in known if b.block == block or (b.is_partial and _begins(new, b))]
        kept = [*(b for b in known if b not in dropped), new]
        dropped += kept[:-MAX_BRANCHES]
        self._by_parent[parent] = kept[-MAX_BRANCHES:]
        self._size += len(self._by_parent[parent]) - len(known)
        return tuple(b.block for b in dropped if b.is_partial and b.block != block)

    def longest(
        self, parent: BlockHash, tokens: Sequence[int], held: TierIndex
    ) -> tuple[BlockHash, int]:
        """The held block that shares most leading tokens with `tokens`, and how many: 0, none."""
        best, num_best = BlockHash(b""), 0
        for branch in reversed(self._by_parent.get(parent, ())):
            num_shared = num_common(branch.tokens, tokens)
            if num_shared > num_best and branch.block in held:
                best, num_best = branch.block, num_shared
        return best, num_best

    def forget_all_but(self, held: TierIndex) -> None:
        """Forget continuations whose block is held no more."""
        left = {
            parent: there
            for parent, branches in self._by_parent.items()
            if (there := [branch for branch in branches if branch.block in held])
        }
        self._by_parent = left
        self._size = sum(map(len, left.values()))


class Tails:
    """Branches whose bytes the host tier holds, and those on disk; for the owner thread."""

    def __init__(self, host: HostTier, ledger: BlockLedger, shelf: DiskShelf | None) -> None:
        self._host = host
        self._ledger = ledger
        self._shelf = shelf
        self._branches = Branches()
        self.counts: Counter[str] = Counter(kv_hit_tail_tokens=0, kv_tails_kept=0)

    def find(self, parent: BlockHash, tokens: Sequence[int]) -> tuple[Block, int] | None:
        """A block whose first rows are the KV of the first of `tokens`, and how many rows.

        None when there are less than 16. Counts as a use.
        """
        block, num_tokens = self._branches.longest(parent, tokens, self._ledger.host)
        if num_tokens < MIN_TAIL_TOKENS:
            return None
        self._ledger.host.touch(block)
        self.counts["kv_hit_tail_tokens"] += num_tokens
        return self._host.get(block), num_tokens

    def num_missing(self, parent: BlockHash, tokens: Sequence[int]) -> int:
        """How many of `tokens`, all after `parent`, no held block covers."""
        return len(tokens) - self._branches.longest(parent, tokens, self._ledger.host)[1]

    def note(self, parent: BlockHash, block: BlockHash, tokens: Sequence[int]) -> None:
        """Remember a block that the host may hold; ignored when it does not."""
        if block not in self._ledger.host:
            return
        for useless in self._branches.add(parent, block, tokens):
            self._host.discard(useless)
            if self._shelf is not None:
                self._shelf.forget(useless)
        if len(self._branches) > 2 * len(self._ledger.host) + _SWEEP_SLACK:
            self._branches.forget_all_but(self._ledger.host)

    def keep(
        self, seq: SeqKey, parent: BlockHash, tokens: Sequence[int], kept: tuple[Block, bytes]
    ) -> None:
        """Take in a partial block that sequence `seq` computed, as far as there is room.

        `kept`: its rows, and the salt of the tenant under whose key it goes to disk.
        """
        data, tenant_salt = kept
        name = tail_name(parent, tokens)
        self._host.put(name, data, of=seq)
        if self._shelf is not None:
            self._shelf.keep(name, tenant_salt, data, array.array("I", tokens))
        self.counts["kv_tails_kept"] += 1
        self.note(parent, name, tokens)

    def on_disk(
        self, parent: BlockHash, tokens: Sequence[int], tenant_salt: bytes
    ) -> WantedTail | None:
        """What to read: partial blocks that only the disk holds may go on with `tokens`.

        None when there are none, or too few tokens that the host does not cover.
        """
        if self._shelf is None:
            return None
        num_held = len(tokens) - self.num_missing(parent, tokens)
        names = tuple(n for n in self._shelf.tails(parent) if n not in self._ledger.host)
        if not names or len(tokens) - num_held < MIN_TAIL_TOKENS:
            return None
        return WantedTail(parent, tokens, names, num_held, tenant_salt)

    def searched(self, search: Search) -> None:
        """Take in what was read from disk, and forget what cannot be."""
        for name in search.refused:
            if self._shelf is not None:
                self._shelf.forget(name)
        if (found := search.found) is not None:
            self._host.put(found.name, found.data)
            self._ledger.disk.touch(found.name)
            self.note(found.parent, found.name, found.tokens)


def _begins(longer: Branch, shorter: Branch) -> bool:
    return longer.tokens[: len(shorter.tokens)] == shorter.tokens
