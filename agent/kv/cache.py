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

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from agent.kv.codec import Block
from agent.kv.disk import DiskTier
from agent.kv.fetching import (
    Arrived,
    Counted,
    Fetching,
    Phase,
    PrefixRequest,
    Restored,
    Tier,
    WriteFailed,
)
from agent.kv.host import HostTier
from agent.kv.ledger import BlockLedger, SeqKey
from agent.kv.policy import FetchInputs, fetch_or_recompute
from agent.kv.reading import BlockReader
from agent.kv.redis_tier import SharedTier, SharePolicy
from agent.kv.seal import Sealer
from agent.kv.shelf import DiskShelf
from shoal.blocks import BlockHash


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
        self.host = HostTier(self.ledger)
        self._clock = config.clock
        self._sealer = sealer
        self._shared = shared
        self._reader = BlockReader(sealer, disk, shared, config.wake)
        self._shelf: DiskShelf | None = None
        if disk is not None:
            failed = self._disk_write_failed
            self._shelf = DiskShelf(self.ledger.disk, disk, sealer, failed)
        self._entries: dict[SeqKey, Fetching] = {}
        self._ready: list[SeqKey] = []
        self._counts: Counter[str] = Counter()
        self._restore_ms: dict[Tier, float] = dict.fromkeys(Tier, 0.0)

    def begin(self, request: PrefixRequest) -> Phase:
        """Look the prompt's prefix up in every tier and start to bring it here."""
        self.ledger.open(request.seq, request.hashes, request.num_usable)
        entry = Fetching(request, began_ms=self._now_ms())
        self._entries[request.seq] = entry
        self._advance(entry)
        if entry.phase is Phase.READY:
            self._ready.remove(request.seq)
        return entry.phase

    def __contains__(self, seq: SeqKey) -> bool:
        return seq in self._entries

    def poll(self) -> tuple[SeqKey, ...]:
        """Take in what other threads have finished; sequences that became READY."""
        for result in self._reader.results():
            if isinstance(result, Counted):
                self._counted(result)
            elif isinstance(result, Arrived):
                self._arrived(result)
            elif self._shelf is not None:
                self._shelf.forget(result.block)
        self._give_up_late()
        ready, self._ready = tuple(self._ready), []
        return ready

    def next_deadline_s(self) -> float | None:
        """When, on the configured clock, poll() must run though nothing woke it."""
        busy = (entry.deadline_ms / 1000 for entry in self._entries.values() if entry.busy)
        return min(busy, default=None)

    def take(self, seq: SeqKey) -> Restored:
        """The prefix of a READY sequence; its blocks are no longer held for it afterwards."""
        entry = self._entries[seq]
        table = self.ledger.table(seq)
        hashes = table.hashes[: table.num_matched]
        blocks = tuple(self.host.get(block) for block in hashes)
        tiers = tuple(entry.sources.get(i, Tier.HOST) for i in range(len(hashes)))
        self.ledger.taken(seq)
        for block, data, tier in zip(hashes, blocks, tiers, strict=True):
            self._counts[f"kv_hit_blocks_{tier}"] += 1
            if tier is Tier.HOST and self._shelf is not None:
                # Its write may have been dropped when it was new.
                self._shelf.keep(block, entry.request.tenant_salt, data)
            if tier is not Tier.REDIS:
                self._share(entry.request, block, data)
        self._counts["kv_missed_blocks"] += table.num_usable - len(hashes)
        return Restored(blocks, tiers, entry.decision, entry.ready_ms - entry.began_ms)

    def awaited(self, seq: SeqKey) -> int:
        """Leading blocks of this sequence that others wait for: export as soon as computed."""
        return self.ledger.awaited_blocks(seq)

    def exportable(self, seq: SeqKey, num_computed: int) -> tuple[int, ...]:
        """Indices of this sequence's first `num_computed` blocks that the host lacks."""
        hashes = self.ledger.table(seq).hashes[:num_computed]
        return tuple(i for i, block in enumerate(hashes) if block not in self.ledger.host)

    def offer(self, seq: SeqKey, index: int, data: Block) -> None:
        """Take in a block that this sequence computed; disk and shared tier follow behind."""
        request = self._entries[seq].request
        block = self.ledger.table(seq).hashes[index]
        self._keep(block, data, request.tenant_salt, of=seq)
        if self._shared is not None and self._shared.policy is SharePolicy.ALWAYS:
            self._share(request, block, data)
        self._resume_unblocked()

    def close(self, seq: SeqKey) -> None:
        """Forget the sequence; those that waited for it plan anew. Unknown ones are ignored."""
        entry = self._entries.pop(seq, None)
        if entry is None:
            return
        entry.end_round()
        if seq in self._ready:
            self._ready.remove(seq)
        for waiting in self.ledger.close(seq):
            self._advance(self._entries[waiting])

    def counters(self) -> dict[str, float]:
        """Cumulative figures and present sizes, named as metrics are."""
        figures: dict[str, float] = dict(self._counts)
        for tier, restore_ms in self._restore_ms.items():
            figures[f"kv_restore_ms_{tier}"] = restore_ms
        figures["kv_host_bytes"] = self.host.used_bytes
        figures["kv_host_evictions"] = self.ledger.host.num_evictions
        figures["kv_disk_bytes"] = self.ledger.disk.used_bytes
        figures["kv_disk_evictions"] = self.ledger.disk.num_evictions
        if self._shared is not None:
            figures.update(self._shared.figures())
        return figures

    def drain(self, timeout_s: float) -> bool:
        """Wait until disk and shared tier have what was offered to them."""
        disk = self._shelf is None or self._shelf.drain(timeout_s)
        return disk and (self._shared is None or self._shared.drain(timeout_s))

    def shut_down(self, timeout_s: float = 2.0) -> None:
        """Write what is queued, for at most `timeout_s` a tier, and end all threads."""
        for seq in tuple(self._entries):
            self.close(seq)
        if self._shelf is not None:
            self._shelf.close(timeout_s)
        self._reader.close()
        if self._shelf is not None:
            self._shelf.disk.close()
        if self._shared is not None:
            self._shared.close(timeout_s)

    def check_integrity(self) -> None:
        """Raise AssertionError when ledger and bytes disagree."""
        self.ledger.check_integrity()
        self.host.check_integrity()

    def _advance(self, entry: Fetching) -> None:
        """Go as far as the host alone allows, then start the next read, wait, or be ready."""
        seq, usable = entry.request.seq, entry.request.num_usable
        matched = self.ledger.match(seq)
        if self.ledger.claim(seq) is not None:
            entry.phase = Phase.WAITING
            return
        if matched < usable and (self._read_disk(entry, matched) or self._ask(entry, matched)):
            return
        entry.phase = Phase.READY
        entry.ready_ms = self._now_ms()
        self._ready.append(seq)

    def _read_disk(self, entry: Fetching, first: int) -> bool:
        """Start to read the blocks from `first` on that the disk holds; False: none."""
        if self._shelf is None or entry.disk_next > first:
            return False
        end = first
        while self._owns(entry, end) and entry.request.hashes[end] in self._shelf:
            end += 1
        entry.disk_next = end
        if end == first:
            return False
        entry.start_round(Tier.DISK, range(first, end), self._now_ms())
        self._reader.read(entry, range(first, end))
        return True

    def _ask(self, entry: Fetching, first: int) -> bool:
        """Ask the shared tier how many blocks from `first` on it holds; False: not asked."""
        shared, request = self._shared, entry.request
        if shared is None or not request.share or entry.shared_next > first:
            return False
        end = first
        while self._owns(entry, end):
            end += 1
        entry.shared_next = max(end, first + 1)
        if end == first or shared.policy is SharePolicy.NEVER or not shared.available:
            return False
        entry.start_round(Tier.REDIS, range(0), self._now_ms())
        self._reader.count(entry, request.hashes[first:end])
        return True

    def _owns(self, entry: Fetching, index: int) -> bool:
        """Whether it is this sequence's to fetch: another may be fetching the rest."""
        request = entry.request
        claims = self.ledger.table(request.seq).claims
        return index < request.num_usable and request.hashes[index] in claims

    def _counted(self, result: Counted) -> None:
        entry, shared = self._entries.get(result.seq), self._shared
        if entry is None or shared is None or entry.round != result.round:
            return
        decision = fetch_or_recompute(
            FetchInputs(
                num_blocks=result.num_blocks,
                block_bytes=self._sealer.sealed_bytes,
                bandwidth_bytes_per_s=shared.bandwidth_bytes_per_s,
                round_trip_ms=shared.round_trip_ms,
                prefill_tokens_per_s=entry.request.prefill_tokens_per_s,
            )
        )
        if result.num_blocks:
            entry.decision = decision
            self._counts["kv_fetch_decisions" if decision.fetch else "kv_recompute_decisions"] += 1
        if not decision.fetch:
            entry.end_round()
            self._advance(entry)
            return
        first = self.ledger.table(result.seq).num_matched
        indices = range(first, first + result.num_blocks)
        entry.start_round(Tier.REDIS, indices, self._now_ms(), continues=True)
        self._reader.read(entry, indices)

    def _arrived(self, result: Arrived) -> None:
        entry = self._entries.get(result.seq)
        if result.data is not None:
            from_shared = entry is not None and result.tier is Tier.REDIS
            salt = entry.request.tenant_salt if entry is not None and from_shared else None
            self._keep(result.block, result.data, salt)
        elif result.tier is Tier.DISK and self._shelf is not None:
            self._shelf.forget(result.block)
        if entry is None or entry.round != result.round:
            return
        entry.pending.discard(result.index)
        if result.data is None:
            entry.pending = {index for index in entry.pending if index < result.index}
        else:
            entry.sources[result.index] = result.tier
            entry.num_arrived += 1
            entry.arrived_bytes += result.data.nbytes
            self.ledger.match(result.seq)
        if not entry.pending:
            self._end_reads(entry)

    def _end_reads(self, entry: Fetching) -> None:
        elapsed_ms = self._now_ms() - entry.started_ms
        self._restore_ms[entry.tier] += elapsed_ms
        if entry.tier is Tier.REDIS and self._shared is not None:
            self._shared.fetched(entry.arrived_bytes, elapsed_ms / 1000)
        entry.end_round()
        self._advance(entry)
        self._resume_unblocked()

    def _give_up_late(self) -> None:
        now_ms = self._now_ms()
        for entry in tuple(self._entries.values()):
            if not entry.busy or now_ms < entry.deadline_ms:
                continue
            self._counts[f"kv_gave_up_{entry.tier}"] += 1
            if entry.tier is Tier.REDIS and self._shared is not None:
                self._shared.gave_up()
            entry.disk_next = entry.shared_next = entry.request.num_usable
            self._end_reads(entry)

    def _keep(
        self,
        block: BlockHash,
        data: Block,
        disk_salt: bytes | None,
        *,
        of: SeqKey | None = None,
    ) -> None:
        """Into the host tier; behind it to disk where the tenant's salt is given."""
        self.host.put(block, data, of=of)
        if self._shelf is not None and disk_salt is not None:
            self._shelf.keep(block, disk_salt, data)

    def _share(self, request: PrefixRequest, block: BlockHash, data: Block) -> None:
        if self._shared is not None and request.share:
            self._shared.offer(block, request.tenant_salt, data)

    def _resume_unblocked(self) -> None:
        for seq in self.ledger.unblocked():
            self._advance(self._entries[seq])

    def _disk_write_failed(self, block: BlockHash) -> None:
        """On the disk's writer thread."""
        self._reader.post(WriteFailed(block))

    def _now_ms(self) -> float:
        return 1000 * self._clock()
