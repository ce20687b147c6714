"""The disk tier in use: the ledger's books, the files, and the thread that writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent.kv.codec import Block
from agent.kv.disk import DiskTier
from agent.kv.lru import TierIndex
from agent.kv.pacing import Pace
from agent.kv.seal import Sealer
from agent.kv.tail_files import MAX_BRANCHES, parent_tag, tag_of
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
        # Partial blocks by the tag of what is before them, oldest first.
        self._tails: dict[bytes, dict[BlockHash, None]] = {}
        for stored in disk.scan(self._is_size):
            leaving = index.admit(stored.block, stored.num_bytes)
            for old in (stored.block,) if leaving is None else leaving:
                self._forget_tail(old)
                disk.delete(old)
            if leaving is not None and stored.num_bytes != sealer.sealed_bytes:
                self._note_tail(stored.block)
        self._writes = WriteBehind("kv-disk-write", self._write, _QUEUE_BYTES)

    def __contains__(self, block: BlockHash) -> bool:
        return block in self._index

    def tails(self, parent: BlockHash) -> tuple[BlockHash, ...]:
        """Names of partial blocks that may go on behind `parent`, the newest first."""
        return self._tails_of(parent_tag(parent))

    def keep(
        self, block: BlockHash, tenant_salt: bytes, data: Block, tokens: Sequence[int] = ()
    ) -> None:
        """Book the block and write it behind, unless it is here or the queue is full.

        `tokens`: of a partial block, which is found by them.
        """
        if block in self._index:
            return
        sealer = self._sealer
        num_bytes = sealer.tail_bytes(len(tokens)) if tokens else sealer.sealed_bytes
        leaving = self._index.admit(block, num_bytes)
        if leaving is None:
            return
        for old in leaving:
            self._forget_tail(old)
            self._writes.offer(WriteJob(old))
        if not self._writes.offer(WriteJob(block, tenant_salt, data, tokens)):
            self._index.discard(block)
        elif tokens:
            self._note_tail(block)
            for old in self._tails_of(tag_of(block))[MAX_BRANCHES:]:
                self.forget(old)

    def forget(self, block: BlockHash) -> None:
        """Drop a block that could not be read or written, or is of no more use."""
        if self._index.discard(block):
            self._forget_tail(block)
            self._writes.offer(WriteJob(block))

    @property
    def num_dropped(self) -> int:
        """Blocks for which the queue had no place."""
        return self._writes.num_dropped

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
        self._pace.give_way(self._writes.fill)
        if job.tokens:
            sealed = self._sealer.seal_tail(job.tenant_salt, job.block, job.tokens, job.data)
        else:
            sealed = self._sealer.seal(job.tenant_salt, job.block, job.data)
        if not self.disk.write(job.block, sealed):
            self._write_failed(job.block)

    def _is_size(self, num_bytes: int) -> bool:
        sealer = self._sealer
        return num_bytes == sealer.sealed_bytes or sealer.tail_tokens(num_bytes) is not None

    def _tails_of(self, tag: bytes) -> tuple[BlockHash, ...]:
        return tuple(reversed(self._tails.get(tag, {})))

    def _note_tail(self, name: BlockHash) -> None:
        self._tails.setdefault(tag_of(name), {})[name] = None

    def _forget_tail(self, name: BlockHash) -> None:
        """Whole blocks, which are not listed, are ignored."""
        there = self._tails.get(tag_of(name), {})
        if name in there:
            del there[name]
            if not there:
                del self._tails[tag_of(name)]
