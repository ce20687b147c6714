"""A block cache with small blocks whose right bytes follow from their hash."""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from agent.kv.cache import BlockCache, CacheConfig
from agent.kv.codec import Block
from agent.kv.disk import DiskTier
from agent.kv.fetching import Phase, PrefixRequest, Restored
from agent.kv.layout import CacheShape, Geometry, TensorRows
from agent.kv.ledger import SeqKey
from agent.kv.redis_tier import SharedTier
from agent.kv.seal import OVERHEAD_BYTES, Sealer
from shoal.blocks import BLOCK_TOKENS, BlockHash, BlockSpace, block_hashes

GEOMETRY = Geometry(0x6C6D7364, (CacheShape(2, (TensorRows(1, 4),) * 4),))
BLOCK_BYTES = GEOMETRY.block_bytes
SEALED_BYTES = BLOCK_BYTES + OVERHEAD_BYTES
SECRET = b"fleet secret of the tests"
TENANT = b"tenant a"
LIVENESS_S = 20.0


def prompt(*path: int, tenant: bytes = TENANT) -> tuple[BlockHash, ...]:
    """Hashes of a prompt with one block for each number; equal prefixes share hashes."""
    tokens = [token for number in path for token in [number] * BLOCK_TOKENS]
    return block_hashes(BlockSpace("model", "f16", "f16", "1", tenant), tokens)


def right_bytes(block: BlockHash, geometry: Geometry = GEOMETRY) -> Block:
    """What the engine would compute for this block."""
    seed = hashlib.blake2b(block, digest_size=64).digest()
    return np.frombuffer(seed * (geometry.block_bytes // 64), dtype=np.uint8)


def sealer(secret: bytes = SECRET) -> Sealer:
    return Sealer(secret, GEOMETRY)


@dataclass
class Rig:
    """Drives a BlockCache as the engine does, one sequence after another or together."""

    host_blocks: int = 64
    disk_blocks: int = 0
    directory: Path | None = None
    shared: SharedTier | None = None
    prefill_tokens_per_s: float = 700.0
    secret: bytes = SECRET
    clock: Callable[[], float] = time.monotonic
    awake: threading.Event = field(default_factory=threading.Event)
    keys: Iterable[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        config = CacheConfig(
            host_bytes=self.host_blocks * BLOCK_BYTES,
            disk_bytes=self.disk_blocks * SEALED_BYTES,
            wake=self.awake.set,
            clock=self.clock,
        )
        disk = DiskTier(self.directory) if self.directory is not None else None
        self.cache = BlockCache(config, sealer(self.secret), disk, self.shared)

    def begin(
        self, hashes: Sequence[BlockHash], *, tenant: bytes = TENANT, share: bool = True
    ) -> tuple[SeqKey, Phase]:
        seq = SeqKey(next(iter(self.keys)))
        request = PrefixRequest(
            seq, tuple(hashes), len(hashes), tenant, self.prefill_tokens_per_s, share
        )
        return seq, self.cache.begin(request)

    def wait_ready(self, seq: SeqKey) -> None:
        """Poll as the engine's loop does, asleep until woken or until a deadline is due."""
        give_up = time.monotonic() + LIVENESS_S
        while seq not in self.cache.poll():
            if time.monotonic() > give_up:
                raise TimeoutError(f"sequence {seq} was never ready")
            deadline = self.cache.next_deadline_s()
            pause = 0.5 if deadline is None else max(0.001, deadline - time.monotonic())
            self.awake.wait(min(0.5, pause))
            self.awake.clear()

    def compute(self, seq: SeqKey, hashes: Sequence[BlockHash]) -> None:
        """Offer what a prefill of the whole prompt makes and the host lacks."""
        for index in self.cache.exportable(seq, len(hashes)):
            self.cache.offer(seq, index, right_bytes(hashes[index]))

    def run(
        self, hashes: Sequence[BlockHash], *, tenant: bytes = TENANT, share: bool = True
    ) -> Restored:
        """One sequence from begin to close; checks each restored block's bytes."""
        seq, phase = self.begin(hashes, tenant=tenant, share=share)
        if phase is not Phase.READY:
            self.wait_ready(seq)
        restored = self.cache.take(seq)
        for block, data in zip(hashes, restored.blocks, strict=False):
            np.testing.assert_array_equal(data, right_bytes(block))
        self.compute(seq, hashes)
        self.cache.close(seq)
        self.cache.check_integrity()
        return restored

    def stop(self) -> None:
        self.cache.shut_down()
