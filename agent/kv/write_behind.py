"""A thread that writes blocks behind the engine's back, bounded in bytes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from agent.kv.codec import Block
from shoal.blocks import BlockHash

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WriteJob:
    """One block to write; without data: to delete."""

    block: BlockHash
    tenant_salt: bytes = b""
    data: Block | None = None
    tokens: Sequence[int] = ()  # of a partial block; a whole one is named by its hash alone

    @property
    def num_bytes(self) -> int:
        """Memory that the job holds while it waits."""
        return 0 if self.data is None else self.data.nbytes


class WriteBehind:
    """Runs `write` for each job, in order, on one thread. Never blocks who offers."""

    def __init__(self, name: str, write: Callable[[WriteJob], None], max_bytes: int) -> None:
        self._write = write
        self._max_bytes = max_bytes
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[WriteJob | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._num_open = 0
        self.num_dropped = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def offer(self, job: WriteJob) -> bool:
        """Queue a job; False, and counted as dropped, when the queue holds its bytes' worth."""
        with self._lock:
            if job.num_bytes and self._queued_bytes + job.num_bytes > self._max_bytes:
                self.num_dropped += 1
                return False
            self._queued_bytes += job.num_bytes
            self._num_open += 1
            self._idle.clear()
        self._jobs.put(job)
        return True

    @property
    def fill(self) -> float:
        """How full the queue is, of 1."""
        return self._queued_bytes / self._max_bytes

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything offered is written; False when time ran out."""
        return self._idle.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write what is queued, for at most `timeout_s`, and end the thread."""
        until_s = time.monotonic() + timeout_s
        self.drain(timeout_s)
        self._jobs.put(None)
        self._thread.join(max(0.0, until_s - time.monotonic()))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._write(job)
            except Exception:
                log.exception("kv_write_behind_failed", thread=self._thread.name)
            with self._lock:
                self._queued_bytes -= job.num_bytes
                self._num_open -= 1
                if not self._num_open:
                    self._idle.set()
