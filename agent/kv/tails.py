"""Prefixes of any length: by which tokens a prefix goes on, and partial blocks.

Only for an engine whose KV does not depend on where its prefill was cut. A prompt
that leaves another's path within a block takes that block's first rows: of a whole
block, or of a partial one that holds what a sequence had after its last whole block.
Partial blocks lie in host memory alone, in the same books as whole ones.
"""

from __future__ import annotations

import array
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agent.kv.codec import Block
from agent.kv.host import HostTier
from agent.kv.ledger import BlockLedger, SeqKey
from agent.kv.lru import TierIndex
from shoal.blocks import BLOCK_TOKENS, HASH_BYTES, BlockHash

# What is shorter is not worth the call that restores it, nor the copy that keeps it.
MIN_TAIL_TOKENS = 16
# Continuations of one prefix that are remembered, the newest ones.
MAX_BRANCHES = 16
_TAIL_PERSON = b"shoal-kv-tail--1"
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
            num_common = _num_common(branch.tokens, tokens)
            if num_common > num_best and branch.block in held:
                best, num_best = branch.block, num_common
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
    """Branches whose bytes the host tier holds; for the owner thread."""

    def __init__(self, host: HostTier, ledger: BlockLedger) -> None:
        self._host = host
        self._ledger = ledger
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
        if len(self._branches) > 2 * len(self._ledger.host) + _SWEEP_SLACK:
            self._branches.forget_all_but(self._ledger.host)

    def keep(self, seq: SeqKey, parent: BlockHash, tokens: Sequence[int], data: Block) -> None:
        """Take in a partial block that sequence `seq` computed, as far as there is room."""
        digest = hashlib.blake2b(parent, digest_size=HASH_BYTES, person=_TAIL_PERSON)
        digest.update(array.array("I", tokens).tobytes())
        name = BlockHash(digest.digest())
        self._host.put(name, data, of=seq)
        self.counts["kv_tails_kept"] += 1
        self.note(parent, name, tokens)


def _begins(longer: Branch, shorter: Branch) -> bool:
    return longer.tokens[: len(shorter.tokens)] == shorter.tokens


def _num_common(one: Sequence[int], other: Sequence[int]) -> int:
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))
