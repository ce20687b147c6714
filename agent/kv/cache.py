"""The paged KV cache as the engine uses it: begin, poll, take, offer, close.

Every method is for the engine's owner thread and none of them blocks: disk and
shared tier are read on other threads, whose results `poll` takes in. The life of
a sequence:

    begin(request)     -> READY, or WAITING / RESTORING until poll() names it
    take(seq)          -> the blocks to restore; prefill the rest in whole blocks
    offer(seq, i, data)   for each block in exportable(seq, n), after prefill, or
                          earlier while awaited(seq) says that others wait for them
    close(seq)            in every case, at the end

Offer only blocks whose bytes equal those of a cold prefill. Where KV depends on how
the work was cut, these are the ones that were prefilled as one whole 128-token
chunk; the KV of tokens that were decoded one by one rounds differently there.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent.kv.codec import Block
from agent.kv.disk import DiskTier
from agent.kv.fetching import Fetching, Phase, PrefixRequest, Restored, Tier, WriteFailed
from agent.kv.finding import PrefixFinder
from agent.kv.ledger import BlockLedger, SeqKey
from agent.kv.reading import BlockReader
from agent.kv.redis_tier import SharedTier
from agent.kv.seal import Sealer
from agent.kv.sharing import SharingState
from agent.kv.tails import Tails
from agent.kv.tiers import Tiers
from shoal.blocks import BlockHash
from shoal.kv_sharing import SharePolicy

# For the shared tier at the end, though the disk took all the time there was.
_LEAST_CLOSE_S = 0.2
# For what is queued for a shared tier that was replaced by another.
_LEAVE_WITHIN_S = 4.0


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Budgets in bytes; `wake` is called from other threads when poll() has work."""

    host_bytes: int
    disk_bytes: int
    wake: Callable[[], None]
    clock: Callable[[], float] = time.monotonic  # seconds


class BlockCache:
    """One model's blocks on one device. `disk` and `shared` may be absent."""

    def __init__(
        self,
        config: CacheConfig,
        sealer: Sealer,
        disk: DiskTier | None = None,
        shared: SharedTier | None = None,
    ) -> None:
        self.ledger = BlockLedger(config.host_bytes, config.disk_bytes)
        self._reader = BlockReader(sealer, disk, shared, config.wake)
        self._tiers = Tiers(self.ledger, sealer, disk, shared, self._disk_write_failed)
        self.host = self._tiers.host
        self._finder = PrefixFinder(self._tiers, self._reader, config.clock)
        self._counts: Counter[str] = Counter()

    def open_tails(self) -> Tails:
        """Find partial blocks from now on, on disk too; for prefixes of any length."""
        self._finder.tails = Tails(self.host, self.ledger, self._tiers.shelf)
        return self._finder.tails

    def begin(self, request: PrefixRequest) -> Phase:
        """Look the prompt's prefix up in every tier and start to bring it here."""
        self.ledger.open(request.seq, request.hashes, request.num_usable)
        return self._finder.begin(Fetching(request, began_ms=self._finder.now_ms()))

    def __contains__(self, seq: SeqKey) -> bool:
        return seq in self._finder.entries

    def poll(self) -> tuple[SeqKey, ...]:
        """Take in what other threads have finished; sequences that became READY."""
        return self._finder.poll()

    def next_deadline_s(self) -> float | None:
        """When, on the configured clock, poll() must run though nothing woke it."""
        return self._finder.next_deadline_s()

    def take(self, seq: SeqKey) -> Restored:
        """The prefix of a READY sequence; its blocks are no longer held for it afterwards."""
        entry = self._finder.entries[seq]
        table = self.ledger.table(seq)
        hashes = table.hashes[: table.num_matched]
        blocks = tuple(self.host.get(block) for block in hashes)
        tiers = tuple(entry.sources.get(i, Tier.HOST) for i in range(len(hashes)))
        self.ledger.taken(seq)
        shelf = self._tiers.shelf
        for block, data, tier in zip(hashes, blocks, tiers, strict=True):
            self._counts[f"kv_hit_blocks_{tier}"] += 1
            if tier is Tier.HOST and shelf is not None:
                # Its write may have been dropped when it was new.
                shelf.keep(block, entry.request.tenant_salt, data)
            if tier is not Tier.REDIS:
                self._tiers.share(entry.request, block, data, is_new=False)
        self._counts["kv_missed_blocks"] += table.num_usable - len(hashes)
        waited_ms = entry.ready_ms - entry.began_ms
        return Restored(
            blocks,
            tiers,
            entry.decision,
            waited_ms,
            tail_tier=entry.tail_tier,
            restore_ms=dict(entry.restore_ms),
        )

    def restored(self, seq: SeqKey, since_ms: float) -> Mapping[Tier, float]:
        """Count that since then, by `now_ms`, the prefix went into its slot; its times by tier."""
        entry = self._finder.entries[seq]
        self._finder.restored(entry, Tier.HOST, self.now_ms() - since_ms)
        return dict(entry.restore_ms)

    def now_ms(self) -> float:
        """The configured clock in ms."""
        return self._finder.now_ms()

    def awaited(self, seq: SeqKey) -> int:
        """Leading blocks of this sequence that others wait for: export as soon as computed."""
        return self.ledger.awaited_blocks(seq)

    def shares_at_once(self, seq: SeqKey) -> bool:
        """Whether other devices could use this sequence's blocks as soon as they are offered."""
        entry = self._finder.entries.get(seq)
        return entry is not None and self._tiers.shares_at_once(entry.request)

    def exportable(self, seq: SeqKey, num_computed: int) -> tuple[int, ...]:
        """Indices of this sequence's first `num_computed` blocks that the host lacks."""
        hashes = self.ledger.table(seq).hashes[:num_computed]
        return tuple(i for i, block in enumerate(hashes) if block not in self.ledger.host)

    def offer(self, seq: SeqKey, index: int, data: Block) -> None:
        """Take in a block that this sequence computed; disk and shared tier follow behind."""
        request = self._finder.entries[seq].request
        block = self.ledger.table(seq).hashes[index]
        self._tiers.keep(block, data, request.tenant_salt, of=seq)
        self._tiers.share(request, block, data, is_new=True)
        self._finder.resume_unblocked()

    def close(self, seq: SeqKey) -> None:
        """Forget the sequence; those that waited for it plan anew. Unknown ones are ignored."""
        self._finder.forget(seq)

    def urgent(self, *, somebody_waits: bool) -> None:
        """Tell whether somebody waits for a first token: writes give way to that."""
        if somebody_waits:
            self._tiers.pace.hold()
        else:
            self._tiers.pace.release()

    def counters(self) -> dict[str, float]:
        """Cumulative figures and present sizes, named as metrics are."""
        figures: dict[str, float] = {**self._counts, **self._finder.counts}
        for tier, restore_ms in self._finder.restore_ms.items():
            figures[f"kv_restore_ms_{tier}"] = restore_ms
        return figures | self._tiers.figures()

    @property
    def shares(self) -> bool:
        """Whether blocks go to a shared tier, and come from there, at all."""
        shared = self._tiers.shared
        return shared is not None and shared.policy is not SharePolicy.NEVER

    def sharing(self) -> SharingState:
        """What is done with blocks that are computed now."""
        return self._tiers.sharing()

    def use_shared(self, shared: SharedTier | None) -> None:
        """Share over this tier from now on; the old one ends behind, its reads are given up."""
        old, self._tiers.shared = self._tiers.shared, shared
        self._reader.use_shared(shared)
        if shared is not None:
            shared.pace = self._tiers.pace
        self._finder.leave_shared()
        if old is not None:
            # Not a daemon: it stores what is queued, for seconds at most.
            args = (_LEAVE_WITHIN_S,)
            threading.Thread(target=old.close, args=args, name="kv-shared-close").start()

    def drain_shared(self, timeout_s: float) -> bool:
        """Wait until the shared tier has what was offered to it; on any thread."""
        return self._tiers.shared is None or self._tiers.shared.drain(timeout_s)

    def drain(self, timeout_s: float) -> bool:
        """Wait until disk and shared tier have what was offered to them."""
        return self._tiers.drain(timeout_s)

    def shut_down(self, timeout_s: float = 4.0) -> None:
        """Write what is queued, for at most about `timeout_s` in all, and end all threads.

        The disk first: what it has is found after a restart.
        """
        until_s = time.monotonic() + timeout_s
        for seq in tuple(self._finder.entries):
            self.close(seq)
        self._tiers.close_disk_writes(timeout_s)
        self._reader.close()
        self._tiers.close(max(_LEAST_CLOSE_S, until_s - time.monotonic()))

    def check_integrity(self) -> None:
        """Raise AssertionError when ledger and bytes disagree."""
        self.ledger.check_integrity()
        self.host.check_integrity()

    def _disk_write_failed(self, block: BlockHash) -> None:
        """On the disk's writer thread."""
        self._reader.post(WriteFailed(block))
