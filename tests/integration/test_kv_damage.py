"""1,000 stored blocks damaged in 1,000 ways: 1,000 refused, on disk and in Redis alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from structlog.testing import capture_logs

from agent.kv.disk import DiskTier
from agent.kv.layout import CacheShape, Geometry, TensorRows
from agent.kv.redis_tier import SharedTier
from agent.kv.seal import Sealer
from agent.kv.sharing import SharedTierConfig
from shoal.blocks import BlockHash, shared_key
from tests.harness.kv_rig import (
    GEOMETRY,
    SECRET,
    TENANT,
    Rig,
    prompt,
    right_bytes,
    sealer,
)
from tests.harness.redis_server import running_redis

NUM_BLOCKS = 1000
OTHER_GEOMETRY = Geometry(GEOMETRY.magic, (CacheShape(2, (TensorRows(8, 4),) * 4),))

# Given the block's hash, its sealed bytes and a number, the damaged bytes.
Damage = Callable[[BlockHash, bytes, int], bytes]


def flip(_: BlockHash, sealed: bytes, number: int) -> bytes:
    at = (number * 37) % len(sealed)
    return sealed[:at] + bytes([sealed[at] ^ (1 << number % 8)]) + sealed[at + 1 :]


def cut(_: BlockHash, sealed: bytes, number: int) -> bytes:
    return sealed[: (number * 31) % len(sealed)]


def lengthen(_: BlockHash, sealed: bytes, number: int) -> bytes:
    return sealed + bytes(1 + number)


def blank(_: BlockHash, sealed: bytes, number: int) -> bytes:
    at = (number * 19) % (len(sealed) - 64)
    return sealed[:at] + bytes(64) + sealed[at + 64 :]


def scramble(_: BlockHash, sealed: bytes, number: int) -> bytes:
    return random.Random(number).randbytes(len(sealed))


def swap_halves(_: BlockHash, sealed: bytes, number: int) -> bytes:
    at = 32 + number
    return sealed[at:] + sealed[:at]


def another_block(_: BlockHash, __: bytes, number: int) -> bytes:
    other = prompt(5000 + number)[0]
    return sealer().seal(TENANT, other, right_bytes(other))


def another_tenant(block: BlockHash, _: bytes, number: int) -> bytes:
    return sealer().seal(b"tenant %d" % number, block, right_bytes(block))


def another_fleet(block: BlockHash, _: bytes, number: int) -> bytes:
    return sealer(b"a fleet's secret %16d" % number).seal(TENANT, block, right_bytes(block))


def another_geometry(block: BlockHash, _: bytes, number: int) -> bytes:
    return Sealer(SECRET, OTHER_GEOMETRY).seal(TENANT, block, right_bytes(block))


DAMAGES: tuple[Damage, ...] = (
    flip,
    cut,
    lengthen,
    blank,
    scramble,
    swap_halves,
    another_block,
    another_tenant,
    another_fleet,
    another_geometry,
)


def damaged_blocks() -> Iterator[tuple[BlockHash, bytes]]:
    seal = sealer()
    for number in range(NUM_BLOCKS):
        (block,) = prompt(number)
        sealed = seal.seal(TENANT, block, right_bytes(block))
        damaged = DAMAGES[number % len(DAMAGES)](block, sealed, number)
        assert damaged != sealed
        yield block, damaged


@pytest.fixture
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


def test_a_thousand_damaged_files_are_all_refused_and_replaced(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path)
    for block, damaged in damaged_blocks():
        assert disk.write(block, damaged)
    disk.close()
    rig = Rig(host_blocks=NUM_BLOCKS, disk_blocks=NUM_BLOCKS, directory=tmp_path)
    with capture_logs():
        for number in range(NUM_BLOCKS):
            assert rig.run(prompt(number)).num_tokens == 0
    rig.stop()
    healed = Rig(host_blocks=NUM_BLOCKS, disk_blocks=NUM_BLOCKS, directory=tmp_path)
    assert sum(healed.run(prompt(n)).num_tokens for n in range(NUM_BLOCKS)) == 128 * NUM_BLOCKS
    healed.stop()


def test_a_thousand_damaged_values_are_all_refused_and_replaced(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        for block, damaged in damaged_blocks():
            client.set(shared_key(block), damaged)
    shared = SharedTier(SharedTierConfig(redis_url), sealer())
    rig = Rig(host_blocks=NUM_BLOCKS, shared=shared)
    with capture_logs():
        for number in range(NUM_BLOCKS):
            assert rig.run(prompt(number)).num_tokens == 0
    assert shared.counters.damaged == NUM_BLOCKS
    assert rig.cache.drain(20)
    rig.stop()
    other = SharedTier(SharedTierConfig(redis_url), sealer())
    healed = Rig(host_blocks=NUM_BLOCKS, shared=other)
    assert sum(healed.run(prompt(n)).num_tokens for n in range(NUM_BLOCKS)) == 128 * NUM_BLOCKS
    healed.stop()
