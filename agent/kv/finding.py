"""Brings prefixes to the host tier: host first, then disk, then the shared tier.

For the owner thread; disk and shared tier are read on other threads, whose results
`poll` takes in. A sequence whose next block another one is making waits for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from agent.kv.fetching import Arrived, Counted, Fetching, Phase, TailArrived, Tier, WriteFailed
from agent.kv.ledger import SeqKey
from agent.kv.policy import FetchInputs, fetch_or_recompute
from agent.kv.reading import BlockReader
from agent.kv.tails import Tails
from agent.kv.tiers import Tiers
from shoal.blocks import BLOCK_TOKENS
from shoal.kv_sharing import SharePolicy


class PrefixFinder:
    """All sequences between begin and READY, and how far each of them is."""

    def __init__(self, tiers: Tiers, reader: BlockReader, clock: Callable[[], float]) -> None:
        """`clock` in seconds."""
        self.entries: dict[SeqKey, Fetching] = {}
        self.counts: Counter[str] = Counter()
        self.tails: Tails | None = None  # of an engine that takes prefixes of any length
        self.restore_ms: dict[Tier, float] = dict.fromkeys(Tier, 0.0)
        self._tiers = tiers
        self._ledger = tiers.ledger
        self._reader = reader
        self._clock = clock
        self._ready: list[SeqKey] = []

    def begin(self, entry: Fetching) -> Phase:
        """Start to bring the prefix of a sequence whose table is open."""
        self.entries[entry.request.seq] = entry
        self._advance(entry)
        if entry.phase is Phase.READY:
            self._ready.remove(entry.request.seq)
        return entry.phase

    def poll(self) -> tuple[SeqKey, ...]:
        """Take in what other threads have finished; sequences that became READY."""
        for result in self._reader.results():
            if isinstance(result, Counted):
                self._counted(result)
            elif isinstance(result, Arrived):
                self._arrived(result)
            elif isinstance(result, TailArrived):
                self._tail_arrived(result)
            else:
                self._write_failed(result)
        self._give_up_late()
        ready, self._ready = tuple(self._ready), []
        return ready

    def next_deadline_s(self) -> float | None:
        """When, on the configured clock, poll() must run though nothing woke it."""
        busy = (entry.deadline_ms / 1000 for entry in self.entries.values() if entry.busy)
        return min(busy, default=None)

    def resume_unblocked(self) -> None:
        """Go on with sequences that no longer have to wait for others."""
        for seq in self._ledger.unblocked():
            self._advance(self.entries[seq])

    def leave_shared(self) -> None:
        """Go on without what is on its way from a shared tier that was left."""
        for entry in tuple(self.entries.values()):
            if entry.busy and entry.tier is Tier.REDIS:
                entry.shared_next = entry.request.num_usable
                entry.end_round()
                self._advance(entry)
        self.resume_unblocked()

    def forget(self, seq: SeqKey) -> bool:
        """Drop a sequence in whatever phase; False when it is unknown."""
        entry = self.entries.pop(seq, None)
        if entry is None:
            return False
        entry.end_round()
        if seq in self._ready:
            self._ready.remove(seq)
        for waiting in self._ledger.close(seq):
            self._advance(self.entries[waiting])
        return True

    def restored(self, entry: Fetching, tier: Tier, elapsed_ms: float) -> None:
        """Count time that a sequence's prefix took, for it and for the tier."""
        entry.restore_ms[tier] = entry.restore_ms.get(tier, 0.0) + elapsed_ms
        self.restore_ms[tier] += elapsed_ms

    def now_ms(self) -> float:
        """The configured clock in ms."""
        return 1000 * self._clock()

    def _advance(self, entry: Fetching) -> None:
        """Go as far as the host alone allows, then start the next read, wait, or be ready."""
        seq, usable = entry.request.seq, entry.request.num_usable
        matched = self._ledger.match(seq)
        if self._ledger.claim(seq) is not None:
            entry.phase = Phase.WAITING
            return
        if matched < usable and (self._read_disk(entry, matched) or self._ask(entry, matched)):
            return
        if self._read_tail(entry, matched):
            return
        entry.phase = Phase.READY
        entry.ready_ms = self.now_ms()
        self._ready.append(seq)

    def _read_disk(self, entry: Fetching, first: int) -> bool:
        """Start to read the blocks from `first` on that the disk holds; False: none."""
        shelf = self._tiers.shelf
        if shelf is None or entry.disk_next > first:
            return False
        end = first
        while self._owns(entry, end) and entry.request.hashes[end] in shelf:
            end += 1
        entry.disk_next = end
        if end == first:
            return False
        entry.start_round(Tier.DISK, range(first, end), self.now_ms())
        self._reader.read(entry, range(first, end))
        return True

    def _ask(self, entry: Fetching, first: int) -> bool:
        """Ask the shared tier how many blocks from `first` on it holds; False: not asked."""
        shared, request = self._tiers.shared, entry.request
        if shared is None or not request.share or entry.shared_next > first:
            return False
        end = first
        while self._owns(entry, end):
            end += 1
        entry.shared_next = max(end, first + 1)
        if end == first or shared.policy is SharePolicy.NEVER or not shared.available:
            return False
        entry.start_round(Tier.REDIS, range(0), self.now_ms())
        self._reader.count(entry, request.hashes[first:end])
        return True

    def _read_tail(self, entry: Fetching, matched: int) -> bool:
        """Start to search the disk for a partial block behind the matched ones; False: none."""
        request = entry.request
        if self.tails is None or entry.tail_asked:
            return False
        entry.tail_asked = True
        start = matched * BLOCK_TOKENS
        # The prompt's last token is always prefilled: the first one is sampled after it.
        tokens = request.tokens[start : min(start + BLOCK_TOKENS, len(request.tokens)) - 1]
        parent = request.hashes[matched - 1] if matched else request.root
        wanted = self.tails.on_disk(parent, tokens, request.tenant_salt)
        if wanted is None:
            return False
        entry.start_round(Tier.DISK, range(0), self.now_ms())
        self._reader.read_tail(entry, wanted)
        return True

    def _disk_moved(self, by: SeqKey) -> None:
        """Sequences that wait for their turn at the disk have not waited in vain."""
        for seq, entry in self.entries.items():
            if seq != by and entry.busy and entry.tier is Tier.DISK:
                entry.disk_moved(self.now_ms())

    def _tail_arrived(self, result: TailArrived) -> None:
        entry = self.entries.get(result.seq)
        self._disk_moved(result.seq)
        if self.tails is not None:
            self.tails.searched(result.search)
        if entry is None or entry.round != result.round:
            return
        if result.search.found is not None:
            entry.tail_tier = Tier.DISK
        self._end_reads(entry)

    def _owns(self, entry: Fetching, index: int) -> bool:
        """Whether it is this sequence's to fetch: another may be fetching the rest."""
        request = entry.request
        claims = self._ledger.table(request.seq).claims
        return index < request.num_usable and request.hashes[index] in claims

    def _counted(self, result: Counted) -> None:
        entry, shared = self.entries.get(result.seq), self._tiers.shared
        if entry is None or shared is None or entry.round != result.round:
            return
        decision = fetch_or_recompute(
            FetchInputs(
                num_blocks=result.num_blocks,
                block_bytes=self._tiers.sealer.sealed_bytes,
                bandwidth_bytes_per_s=shared.bandwidth_bytes_per_s,
                round_trip_ms=shared.round_trip_ms,
                prefill_tokens_per_s=entry.request.prefill_tokens_per_s,
            )
        )
        if result.num_blocks:
            entry.decision = decision
            self.counts["kv_fetch_decisions" if decision.fetch else "kv_recompute_decisions"] += 1
        if not decision.fetch:
            entry.end_round()
            self._advance(entry)
            return
        first = self._ledger.table(result.seq).num_matched
        indices = range(first, first + result.num_blocks)
        entry.start_round(Tier.REDIS, indices, self.now_ms(), continues=True)
        self._reader.read(entry, indices)

    def _arrived(self, result: Arrived) -> None:
        entry = self.entries.get(result.seq)
        if result.tier is Tier.DISK:
            self._disk_moved(result.seq)
        if result.data is not None:
            from_shared = entry is not None and result.tier is Tier.REDIS
            salt = entry.request.tenant_salt if entry is not None and from_shared else None
            self._tiers.keep(result.block, result.data, salt)
        elif result.tier is Tier.DISK and self._tiers.shelf is not None:
            self._tiers.shelf.forget(result.block)
        if entry is None or entry.round != result.round:
            return
        entry.pending.discard(result.index)
        if result.data is None:
            entry.pending = {index for index in entry.pending if index < result.index}
        else:
            entry.sources[result.index] = result.tier
            entry.num_arrived += 1
            entry.arrived_bytes += result.data.nbytes
            self._ledger.match(result.seq)
        if not entry.pending:
            self._end_reads(entry)

    def _write_failed(self, result: WriteFailed) -> None:
        if self._tiers.shelf is not None:
            self._tiers.shelf.forget(result.block)

    def _end_reads(self, entry: Fetching) -> None:
        elapsed_ms = self.now_ms() - entry.started_ms
        self.restored(entry, entry.tier, elapsed_ms)
        if entry.tier is Tier.REDIS and self._tiers.shared is not None:
            self._tiers.shared.fetched(entry.arrived_bytes, elapsed_ms / 1000)
        entry.end_round()
        self._advance(entry)
        self.resume_unblocked()

    def _give_up_late(self) -> None:
        now_ms = self.now_ms()
        for entry in tuple(self.entries.values()):
            if not entry.busy or now_ms < entry.deadline_ms:
                continue
            self.counts[f"kv_gave_up_{entry.tier}"] += 1
            if entry.tier is Tier.REDIS and self._tiers.shared is not None:
                self._tiers.shared.gave_up()
            entry.disk_next = entry.shared_next = entry.request.num_usable
            entry.tail_asked = True
            self._end_reads(entry)
