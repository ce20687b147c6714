"""One sequence's way to its prefix: what it has, what it waits for, what it cost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from agent.kv.codec import Block
from agent.kv.ledger import SeqKey
from agent.kv.policy import FetchDecision, fetch_deadline_ms, recompute_time_ms
from agent.kv.tail_files import Search
from shoal.blocks import BLOCK_TOKENS, BlockHash


class Tier(StrEnum):
    """Where restored blocks came from; the value is the key in usage reports."""

    HOST = "host"
    DISK = "disk"
    REDIS = "redis"


class Phase(StrEnum):
    """What a sequence does before its prefill may start."""

    WAITING = "waiting"  # another sequence is making the next block
    RESTORING = "restoring"  # blocks are on their way from disk or the shared tier
    READY = "ready"  # take() and prefill the rest


@dataclass(frozen=True, slots=True)
class PrefixRequest:
    """A sequence's prompt as the cache sees it.

    `hashes`: of all its full blocks. `num_usable`: leading blocks that may be
    restored; at least one prompt token must remain to be prefilled.
    """

    seq: SeqKey
    hashes: tuple[BlockHash, ...]
    num_usable: int
    tenant_salt: bytes
    prefill_tokens_per_s: float
    share: bool = True  # False: the shared tier is neither read nor written for it
    # For partial blocks behind whole ones: the prompt, and what is before its first token.
    tokens: Sequence[int] = ()
    root: BlockHash = BlockHash(b"")  # noqa: RUF009 - a NewType of bytes


def usable_blocks(num_prompt_tokens: int) -> int:
    """Blocks of a prompt that may be restored: the last token is always prefilled."""
    return max(0, num_prompt_tokens - 1) // BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Restored:
    """The prefix that a sequence may restore: leading blocks in order.

    `tail`: a partial block behind them.
    """

    blocks: tuple[Block, ...]
    tiers: tuple[Tier, ...]  # of each block
    decision: FetchDecision | None  # about the shared tier, when it held any of it
    waited_ms: float  # from begin() to READY
    tail: Block | None = None
    num_tail_tokens: int = 0
    tail_tier: Tier = Tier.HOST
    # Per tier; disk, redis: until read into memory; host: from memory into the slot.
    restore_ms: Mapping[Tier, float] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Prompt tokens that need no prefill."""
        return len(self.blocks) * BLOCK_TOKENS + self.num_tail_tokens

    def tokens_by_tier(self) -> dict[str, int]:
        """For `Usage.cached_tokens_by_tier`."""
        counts = {tier: n * BLOCK_TOKENS for tier, n in Counter(self.tiers).items()}
        if self.num_tail_tokens:
            counts[self.tail_tier] = counts.get(self.tail_tier, 0) + self.num_tail_tokens
        return {str(tier): count for tier, count in counts.items()}


@dataclass(frozen=True, slots=True)
class Counted:
    """The shared tier holds this many leading blocks of those asked for."""

    seq: SeqKey
    round: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """One block's read ended; None: it is not there, damaged or out of reach."""

    seq: SeqKey
    round: int
    index: int
    block: BlockHash
    data: Block | None
    tier: Tier


@dataclass(frozen=True, slots=True)
class TailArrived:
    """The search for a partial block on disk ended."""

    seq: SeqKey
    round: int
    search: Search


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """The disk did not take a block that was booked."""

    block: BlockHash


@dataclass(slots=True)
class Fetching:
    """Mutable state between begin() and READY; changed by the owner thread alone.

    A round is one batch of reads. What arrives of an older round is kept as a
    block but no longer awaited.
    """

    request: PrefixRequest
    began_ms: float
    phase: Phase = Phase.RESTORING
    round: int = 0
    started_ms: float = 0.0
    stall_from_ms: float = 0.0  # the time limit counts from here
    pending: set[int] = field(default_factory=set)
    counting: bool = False
    num_arrived: int = 0
    arrived_bytes: int = 0
    tier: Tier = Tier.DISK
    disk_next: int = 0  # first block that the disk was not asked for
    shared_next: int = 0
    tail_asked: bool = False
    tail_tier: Tier = Tier.HOST
    sources: dict[int, Tier] = field(default_factory=dict)
    restore_ms: dict[Tier, float] = field(default_factory=dict)
    decision: FetchDecision | None = None
    ready_ms: float = 0.0
    cancelled: threading.Event = field(default_factory=threading.Event)

    def start_round(
        self, tier: Tier, indices: range, now_ms: float, *, continues: bool = False
    ) -> None:
        """Begin to await reads of `indices`; none: the count of what the tier holds.

        A round that continues the one before shares its time limit.
        """
        self.end_round()
        self.cancelled = threading.Event()
        self.tier = tier
        self.pending = set(indices)
        self.counting = not indices
        self.num_arrived = self.arrived_bytes = 0
        self.started_ms = now_ms
        if not continues:
            self.stall_from_ms = now_ms
        self.phase = Phase.RESTORING

    def end_round(self) -> None:
        """Await nothing more of this round."""
        self.cancelled.set()
        self.pending = set()
        self.counting = False
        self.round += 1

    def disk_moved(self, now_ms: float) -> None:
        """A read for another sequence ended: who waits in the disk's queue is not stalled.

        Waiting is worth while as long as computing what is awaited would take.
        """
        num_awaited = max(1, len(self.pending))
        worth_ms = recompute_time_ms(num_awaited, self.request.prefill_tokens_per_s)
        until_ms = min(now_ms, self.started_ms + worth_ms)
        self.stall_from_ms = max(self.stall_from_ms, until_ms)

    @property
    def busy(self) -> bool:
        """True while reads of this round are out."""
        return self.counting or bool(self.pending)

    @property
    def deadline_ms(self) -> float:
        """When to stop waiting for this round."""
        speed = self.request.prefill_tokens_per_s
        return fetch_deadline_ms(self.stall_from_ms, self.num_arrived, speed)
