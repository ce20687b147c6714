"""The shared tier: sealed blocks in Redis, one value a block, for the whole fleet.

Reads run on a few threads of its own, writes behind on another. Redis being
away, hung, full, slow or of another mind about who we are costs time within the
caller's limit and never an error: a block that does not come is computed.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field

import redis
import structlog

from agent.kv.block_read import BlockReads
from agent.kv.codec import Block
from agent.kv.link import BandwidthBudget, Breaker, BreakerState, Speed
from agent.kv.pacing import Pace
from agent.kv.policy import STALL_LIMIT_MS
from agent.kv.redis_client import shared_client
from agent.kv.seal import Sealer, SealError
from agent.kv.sharing import NotShared, SharedCounters, SharedTierConfig, SharingState
from agent.kv.write_behind import WriteBehind, WriteJob
from shoal.blocks import BlockHash, shared_key
from shoal.kv_sharing import SharePolicy

log = structlog.get_logger()
_WRITE_TIMEOUT_S = 5.0
# A link found slow is not fetched from, so it must be tried again some day.
_SPEED_HOLDS_S = 60.0
# A Redis without room that does not evict refuses every store; reads still work.
_PAUSE_WHEN_FULL_S = 5.0
_LEAST_JOIN_S = 0.2  # for a store that is under way when the queue's time is over
_REMEMBERED_BLOCKS = 65_536
_FAILURES = (redis.RedisError, OSError)
# The tier knows this device's user not, no longer, or not with these rights.
_DENIALS = (redis.AuthenticationError, redis.exceptions.NoPermissionError)
# For so long after a block found no place in the queue that is why blocks are not shared.
_DROP_SHOWS_S = 30.0


@dataclass(slots=True)
class _Measured:
    read: Speed = field(default_factory=Speed)
    write: Speed = field(default_factory=Speed)
    read_at_s: float = 0.0
    round_trip_ms: float = 0.0


class SharedTier:
    """One agent's side of the shared tier."""

    def __init__(
        self,
        config: SharedTierConfig,
        sealer: Sealer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = config.policy
        self.config = config
        self.pace = Pace()  # of writes; whoever has several tiers gives them one
        self.counters = SharedCounters()
        self._sealer = sealer
        self._clock = clock
        self._breaker = Breaker()
        self._measured = _Measured()
        self._lock = threading.Lock()
        # Blocks that need no storing, and damaged values to overwrite; newest last.
        self._known: OrderedDict[BlockHash, None] = OrderedDict()
        self._damaged: OrderedDict[BlockHash, None] = OrderedDict()
        self._budget = BandwidthBudget(config.write_bytes_per_s, clock())
        self._full_until_s = 0.0
        self._dropped_at_s: float | None = None
        self._denied = False
        self._closing = threading.Event()
        stall_s = STALL_LIMIT_MS / 1000
        self._reader = shared_client(config, timeout_s=stall_s * 0.8)
        self._writer = shared_client(config, timeout_s=_WRITE_TIMEOUT_S)
        self._reads = BlockReads(self._reader, sealer.sealed_bytes)
        self.readers = ThreadPoolExecutor(config.read_concurrency, "kv-shared-read")
        self._write_behind = WriteBehind("kv-shared-write", self._store, config.queue_bytes)

    @property
    def available(self) -> bool:
        """False while the breaker is open; starts the probe in the background when it is due."""
        if self._breaker.state is BreakerState.CLOSED:
            return True
        with self._lock:
            due = self._breaker.take_probe(self._clock())
        if due:
            self.readers.submit(self._probe)
        return False

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """Speed of fetching blocks as lately measured, else of storing them; None: unknown."""
        measured = self._measured
        if self._clock() - measured.read_at_s > _SPEED_HOLDS_S:
            measured.read.bytes_per_s = None
        return measured.read.bytes_per_s or measured.write.bytes_per_s

    @property
    def round_trip_ms(self) -> float:
        """Time of the latest small command; 0 before the first."""
        return self._measured.round_trip_ms

    def count_leading(self, blocks: Sequence[BlockHash]) -> int:
        """How many leading blocks are there now. Blocking, within the read time limit."""
        started = self._clock()
        try:
            pipeline = self._reader.pipeline(transaction=False)
            for block in blocks:
                pipeline.exists(shared_key(block))
            present = pipeline.execute()
        except _FAILURES as error:
            self._failed(error)
            return 0
        self._measured.round_trip_ms = 1000 * (self._clock() - started)
        self._worked()
        for block, there in zip(blocks, present, strict=True):
            if not there:
                self._set(self._known, block, present=False)
        return next((i for i, there in enumerate(present) if not there), len(blocks))

    def fetch(self, block: BlockHash, tenant_salt: bytes) -> Block | None:
        """The opened block; None when it is missing, damaged or out of reach. Blocking."""
        try:
            sealed = self._reads.get(shared_key(block))
        except _FAILURES as error:
            self._failed(error)
            return None
        self._worked()
        if sealed is None:
            self.counters.misses += 1
            return None
        try:
            opened = self._sealer.open(tenant_salt, block, sealed)
        except SealError as error:
            self.counters.damaged += 1
            self._set(self._damaged, block, present=True)
            self._set(self._known, block, present=False)
            log.warning("kv_shared_block_refused", reason=str(error), num_bytes=len(sealed))
            return None
        self.counters.hits += 1
        self.counters.bytes_read += len(sealed)
        self._set(self._known, block, present=True)
        return opened

    def fetched(self, num_bytes: int, seconds: float) -> None:
        """Report what a whole fetch, several blocks at once, moved in what time."""
        self._measured.read.sample(num_bytes, seconds)
        self._measured.read_at_s = self._clock()

    def gave_up(self) -> None:
        """Report that a caller's time limit ended before an answer came."""
        with self._lock:
            self._breaker.failure(self._clock(), hung=True)
        self.counters.failures += 1

    def offer(self, block: BlockHash, tenant_salt: bytes, data: Block) -> NotShared | None:
        """Queue a block for storing; None when that was done or the tier has it, else why not."""
        if block in self._known:
            return None
        obstacle = self.state().not_shared
        if self.policy is not SharePolicy.NEVER and not self.available:
            return obstacle or NotShared.UNREACHABLE
        if obstacle in (NotShared.POLICY_NEVER, NotShared.TIER_FULL):
            return obstacle
        if self._write_behind.offer(WriteJob(block, tenant_salt, data)):
            return None
        self._dropped_at_s = self._clock()
        return self.state().not_shared

    def state(self) -> SharingState:
        """What is done with blocks that are computed now."""
        limit = self.config.write_bytes_per_s
        return SharingState(self.policy, limit, self._obstacle(self._clock()))

    def _obstacle(self, now_s: float) -> NotShared | None:
        dropped_at_s = self._dropped_at_s
        if self.policy is SharePolicy.NEVER:
            return NotShared.POLICY_NEVER
        if self._denied:
            return NotShared.AUTH_FAILED
        if self._breaker.state is BreakerState.OPEN:
            return NotShared.UNREACHABLE
        if now_s < self._full_until_s:
            return NotShared.TIER_FULL
        if dropped_at_s is not None and now_s - dropped_at_s < _DROP_SHOWS_S:
            limited = self.config.write_bytes_per_s > 0
            return NotShared.WRITE_LIMIT if limited else NotShared.QUEUE_FULL
        return None

    def figures(self) -> dict[str, float]:
        """Counters and the state of the link, named as metrics are."""
        figures: dict[str, float] = {
            f"kv_shared_{name}": value for name, value in asdict(self.counters).items()
        }
        figures["kv_shared_dropped"] = self._write_behind.num_dropped
        figures["kv_shared_open"] = float(self._breaker.state is BreakerState.OPEN)
        figures["kv_shared_bytes_per_s"] = self.bandwidth_bytes_per_s or 0.0
        return figures

    def drain(self, timeout_s: float) -> bool:
        """Wait until what was offered is stored or given up."""
        return self._write_behind.drain(timeout_s)

    def close(self, timeout_s: float = 2.0) -> None:
        """Store what is queued, for at most `timeout_s`, and disconnect."""
        until_s = time.monotonic() + timeout_s
        self._write_behind.drain(timeout_s)
        self._closing.set()
        self._write_behind.close(max(_LEAST_JOIN_S, until_s - time.monotonic()))
        self.readers.shutdown(wait=False, cancel_futures=True)
        # A read over a trickling link would go on for as long as bytes come.
        self._reader.connection_pool.disconnect(inuse_connections=True)
        self.readers.shutdown(wait=True)
        self._reader.close()
        self._writer.close()

    def _store(self, job: WriteJob) -> None:
        is_off = self._breaker.state is BreakerState.OPEN or self._clock() < self._full_until_s
        if job.data is None or is_off:
            return
        self.pace.give_way(self._write_behind.fill)
        key = shared_key(job.block)
        try:
            if job.block not in self._damaged and self._writer.exists(key):
                self._set(self._known, job.block, present=True)
                self._worked()
                return
            sealed = self._sealer.seal(job.tenant_salt, job.block, job.data)
            wait_s = self._budget.wait_s(len(sealed), self._clock())
            self.counters.write_waits_ms += 1000 * wait_s
            if wait_s and self._closing.wait(wait_s):
                return
            started = self._clock()
            self._writer.set(key, sealed)
        except redis.exceptions.OutOfMemoryError:
            self.counters.refused_full += 1
            self._full_until_s = self._clock() + _PAUSE_WHEN_FULL_S
            log.warning("kv_shared_tier_full", paused_s=_PAUSE_WHEN_FULL_S)
            return
        except _FAILURES as error:
            self._failed(error)
            return
        self._measured.write.sample(len(sealed), self._clock() - started)
        self._set(self._damaged, job.block, present=False)
        self._set(self._known, job.block, present=True)
        self.counters.written += 1
        self.counters.bytes_written += len(sealed)
        self._worked()

    def _probe(self) -> None:
        try:
            self._reader.ping()
        except _FAILURES as error:
            self._failed(error)
            return
        self._worked()
        log.info("kv_shared_tier_back")

    def _worked(self) -> None:
        with self._lock:
            self._breaker.success()
            self._denied = self._denied and self._breaker.state is BreakerState.OPEN

    def _failed(self, error: Exception) -> None:
        self.counters.failures += 1
        was = self._breaker.state
        # Refused credentials do not heal by asking again at once.
        denied = isinstance(error, _DENIALS)
        with self._lock:
            self._denied = denied
            hopeless = denied or isinstance(error, redis.TimeoutError)
            self._breaker.failure(self._clock(), hung=hopeless)
        if was is BreakerState.CLOSED and self._breaker.state is BreakerState.OPEN:
            log.warning("kv_shared_tier_off", error=type(error).__name__)

    def _set(
        self, blocks: OrderedDict[BlockHash, None], block: BlockHash, *, present: bool
    ) -> None:
        with self._lock:
            blocks.pop(block, None)
            if present:
                blocks[block] = None
            if len(blocks) > _REMEMBERED_BLOCKS:
                blocks.popitem(last=False)
