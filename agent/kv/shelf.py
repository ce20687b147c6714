"""The disk tier in use: the ledger's books, the files, and the thread that writes them."""

from __future__ import annotations

from collections.abc import Callable

from agent.kv.codec import Block
from agent.kv.disk import DiskTier
from agent.kv.lru import TierIndex
from agent.kv.pacing import Pace
from agent.kv.seal import Sealer
from agent.kv.write_behind import WriteBehind, WriteJob
from shoal.blocks import BlockHash

_QUEUE_BYTES = 128 * 1024 * 1024


class DiskShelf:
    """For the owner thread; nothing here blocks but the scan at the start.

    A block is booked before it is written, and what it displaces is deleted
    before that: one thread works in this order, so files never exceed the budget.
    """

    def __init__(
        self,
        index: TierIndex,
        disk: DiskTier,
        sealer: Sealer,
        write_failed: Callable[[BlockHash], None],
        pace: Pace,
    ) -> None:
        """`write_failed` is called on the writer thread, which gives way by `pace`."""
        self.disk = disk
        self._index = index
        self._sealer = sealer
        self._write_failed = write_failed
        self._pace = pace
        for stored in disk.scan(sealer.sealed_bytes):
            leaving = index.admit(stored.block, stored.num_bytes)
            for old in (stored.block,) if leaving is None else leaving:
                disk.delete(old)
        self._writes = WriteBehind("kv-disk-write", self._write, _QUEUE_BYTES)

    def __contains__(self, block: BlockHash) -> bool:
        return block in self._index

    def keep(self, block: BlockHash, tenant_salt: bytes, data: Block) -> None:
        """Book the block and write it behind, unless it is here or the queue is full."""
        if block in self._index:
            return
        leaving = self._index.admit(block, self._sealer.sealed_bytes)
        if leaving is None:
            return
        for old in leaving:
            self._writes.offer(WriteJob(old))
        if not self._writes.offer(WriteJob(block, tenant_salt, data)):
            self._index.discard(block)

    def forget(self, block: BlockHash) -> None:
        """Drop a block that could not be read or written."""
        if self._index.discard(block):
            self._writes.offer(WriteJob(block))

    def drain(self, timeout_s: float) -> bool:
        """Wait until what was kept is written."""
        return self._writes.drain(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write what is queued, for at most `timeout_s`."""
        self._writes.close(timeout_s)

    def _write(self, job: WriteJob) -> None:
        if job.data is None:
            self.disk.delete(job.block)
            return
        self._pace.give_way()
        sealed = self._sealer.seal(job.tenant_salt, job.block, job.data)
        if not self.disk.write(job.block, sealed):
            self._write_failed(job.block)
