"""Reads of blocks off the owner thread: results go into a queue, and the owner is woken."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

import structlog

from agent.kv.codec import Block
from agent.kv.disk import DiskTier
from agent.kv.fetching import (
    Arrived,
    Counted,
    Fetching,
    PrefixRequest,
    TailArrived,
    Tier,
    WriteFailed,
)
from agent.kv.redis_tier import SharedTier
from agent.kv.seal import Sealer, SealError
from agent.kv.tail_files import Search, WantedTail, read_longest
from shoal.blocks import BlockHash

log = structlog.get_logger()
_DISK_READ_THREADS = 2
Result = Arrived | Counted | TailArrived | WriteFailed


@dataclass(frozen=True, slots=True)
class _Read:
    request: PrefixRequest
    round: int
    index: int
    tier: Tier
    cancelled: Event


class BlockReader:
    """Starts reads for sequences and hands back what became of them."""

    def __init__(
        self,
        sealer: Sealer,
        disk: DiskTier | None,
        shared: SharedTier | None,
        wake: Callable[[], None],
    ) -> None:
        self._sealer = sealer
        self._disk = disk
        self._shared = shared
        self._wake = wake
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._disk_threads = ThreadPoolExecutor(_DISK_READ_THREADS, "kv-disk-read")

    def use_shared(self, shared: SharedTier | None) -> None:
        """Read from this shared tier from now on."""
        self._shared = shared

    def results(self) -> Iterator[Result]:
        """What has ended since the last call."""
        while True:
            try:
                yield self._results.get_nowait()
            except queue.Empty:
                return

    def post(self, result: Result) -> None:
        """Hand a result to the owner; from any thread."""
        self._results.put(result)
        self._wake()

    def read(self, entry: Fetching, indices: range) -> None:
        """Read blocks of the entry's current round from its tier, in order."""
        threads = self._disk_threads
        if entry.tier is Tier.REDIS and self._shared is not None:
            threads = self._shared.readers
        for index in indices:
            read = _Read(entry.request, entry.round, index, entry.tier, entry.cancelled)
            threads.submit(self._run, read)

    def count(self, entry: Fetching, blocks: tuple[BlockHash, ...]) -> None:
        """Ask the shared tier how many leading ones of `blocks` it holds."""
        shared, seq, number = self._shared, entry.request.seq, entry.round
        cancelled = entry.cancelled
        if shared is None:
            raise ValueError("no shared tier to ask")

        def ask() -> None:
            count = 0
            try:
                if not cancelled.is_set():
                    count = shared.count_leading(blocks)
            finally:
                self.post(Counted(seq, number, count))

        shared.readers.submit(ask)

    def read_tail(self, entry: Fetching, wanted: WantedTail) -> None:
        """Search the disk for the partial block that goes on most like the prompt."""
        disk, seq, number, cancelled = self._disk, entry.request.seq, entry.round, entry.cancelled

        def search() -> None:
            ended = Search(None)
            try:
                if disk is not None and not cancelled.is_set():
                    ended = read_longest(disk, self._sealer, wanted)
            except Exception:
                log.exception("kv_read_failed", tier=str(Tier.DISK))
            self.post(TailArrived(seq, number, ended))

        self._disk_threads.submit(search)

    def close(self) -> None:
        """End the disk's threads; reads not yet begun are dropped."""
        self._disk_threads.shutdown(wait=True, cancel_futures=True)

    def _run(self, read: _Read) -> None:
        if read.cancelled.is_set():
            return
        block = read.request.hashes[read.index]
        data: Block | None = None
        try:
            if read.tier is Tier.REDIS:
                data = self._from_shared(block, read.request.tenant_salt)
            else:
                data = self._from_disk(block, read.request.tenant_salt)
        except Exception:
            # One that was called off is cut from its connection when the tier closes.
            if not read.cancelled.is_set():
                log.exception("kv_read_failed", tier=str(read.tier))
        self.post(Arrived(read.request.seq, read.round, read.index, block, data, read.tier))

    def _from_shared(self, block: BlockHash, tenant_salt: bytes) -> Block | None:
        return None if self._shared is None else self._shared.fetch(block, tenant_salt)

    def _from_disk(self, block: BlockHash, tenant_salt: bytes) -> Block | None:
        sealed = None if self._disk is None else self._disk.read(block)
        if sealed is None:
            return None
        try:
            return self._sealer.open(tenant_salt, block, sealed)
        except SealError as error:
            log.warning("kv_disk_block_refused", reason=str(error), num_bytes=len(sealed))
            return None
