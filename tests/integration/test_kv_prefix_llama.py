"""The whole cache under the real model: other agents, restarts and preemption change no logit."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from agent.kv.cache import BlockCache, CacheConfig
from agent.kv.disk import DiskTier
from agent.kv.fetching import Phase, Restored
from agent.kv.layout import Geometry
from agent.kv.ledger import SeqKey
from agent.kv.prefix_cache import PrefixCache, Prompt
from agent.kv.redis_tier import SharedTier
from agent.kv.seal import Sealer
from agent.kv.selfcheck import check_codec
from agent.kv.sharing import SharedTierConfig
from shoal.blocks import BLOCK_TOKENS, BlockSpace
from tests.harness.kv_llama import Engine, llama, loaded_model
from tests.harness.models import smollm2_file
from tests.harness.redis_server import running_redis

SPACE = BlockSpace("smollm2", "f16", "f16", "test", b"")
MIB = 1024 * 1024
RNG = random.Random(21)
PREFIX = [RNG.randrange(1000, 40000) for _ in range(2 * BLOCK_TOKENS)]
QUESTION = [RNG.randrange(1000, 40000) for _ in range(30)]
Logits = npt.NDArray[np.float32]


@dataclass
class Node:
    """One agent's engine and cache."""

    engine: Engine
    geometry: Geometry
    directory: Path | None = None
    url: str | None = None

    def __post_init__(self) -> None:
        sealer = Sealer(b"fleet secret of the tests", self.geometry)
        self.cache = BlockCache(
            CacheConfig(host_bytes=64 * MIB, disk_bytes=64 * MIB, wake=lambda: None),
            sealer,
            DiskTier(self.directory) if self.directory else None,
            SharedTier(SharedTierConfig(self.url), sealer) if self.url else None,
        )
        context = (self.geometry, self.engine.slots)
        self.prefixes = PrefixCache(self.cache, self.engine, SPACE, context)

    def run(self, key: int, slot: int, tokens: list[int]) -> tuple[Restored, Logits]:
        seq = SeqKey(key)
        self.engine.clear(slot)
        phase = self.prefixes.begin(seq, Prompt(tokens, b"salt", prefill_tokens_per_s=100.0))
        give_up = time.monotonic() + 20
        while phase is not Phase.READY:
            assert time.monotonic() < give_up
            phase = Phase.READY if seq in self.prefixes.ready() else phase
        restored = self.prefixes.restore(seq, slot)
        logits = self.engine.decode(slot, restored.num_tokens, tokens[restored.num_tokens :])
        self.prefixes.prefilled(seq, slot, len(tokens))
        self.prefixes.close(seq)
        self.cache.check_integrity()
        return restored, logits


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Engine, Engine]]:
    with loaded_model(smollm2_file()) as model:
        first = Engine(model, 3, llama.GGML_TYPE_F16)
        second = Engine(model, 2, llama.GGML_TYPE_F16)
        yield first, second
        first.close()
        second.close()


@pytest.fixture(scope="module")
def geometry(engines: tuple[Engine, Engine]) -> Geometry:
    engines[0].decode(0, 0, PREFIX[:BLOCK_TOKENS])
    report = check_codec(engines[0], 0, 1)
    assert report.geometry is not None, report.reason
    return report.geometry


@pytest.fixture(scope="module")
def cold(engines: tuple[Engine, Engine], geometry: Geometry) -> Logits:
    engines[0].clear(0)
    return engines[0].decode(0, 0, PREFIX + QUESTION)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is no stalled Redis."""
    for module in ("agent.kv.policy", "agent.kv.redis_tier"):
        monkeypatch.setattr(f"{module}.STALL_LIMIT_MS", 30_000.0)


@pytest.mark.usefixtures("patience")
def test_host_shared_tier_and_disk_all_continue_bit_identically(
    engines: tuple[Engine, Engine], geometry: Geometry, cold: Logits, tmp_path: Path
) -> None:
    with running_redis() as url:
        first = Node(engines[0], geometry, tmp_path, url)
        second = Node(engines[1], geometry, None, url)
        expected = [(first, 0, {}), (first, 2, {"host": 256})]
        for node, slot, by_tier in expected:
            restored, logits = node.run(slot, slot, PREFIX + QUESTION)
            assert restored.tokens_by_tier() == by_tier
            np.testing.assert_array_equal(logits, cold)
        assert first.cache.drain(10)
        restored, logits = second.run(1, 1, PREFIX + QUESTION)
        assert restored.tokens_by_tier() == {"redis": 256}
        np.testing.assert_array_equal(logits, cold)
        first.cache.shut_down()
        second.cache.shut_down()
    again = Node(engines[1], geometry, tmp_path)
    restored, logits = again.run(1, 0, PREFIX + QUESTION)
    assert restored.tokens_by_tier() == {"disk": 256}
    np.testing.assert_array_equal(logits, cold)
    again.cache.shut_down()


def test_a_parked_sequence_continues_bit_identically_in_another_slot(
    engines: tuple[Engine, Engine], geometry: Geometry, cold: Logits
) -> None:
    node = Node(engines[0], geometry)
    tail = [RNG.randrange(1000, 40000) for _ in range(9)]

    def decode_tail(slot: int, first: int) -> Logits:
        logits = cold
        for index, token in enumerate(tail[first:], start=first):
            at = len(PREFIX) + len(QUESTION) + index
            logits = node.engine.decode(slot, at, [token])
        return logits

    node.engine.clear(0)
    node.engine.decode(0, 0, PREFIX + QUESTION)
    uninterrupted = decode_tail(0, 0)
    node.engine.clear(0)
    node.engine.decode(0, 0, PREFIX + QUESTION)
    for index, token in enumerate(tail[:4]):
        node.engine.decode(0, len(PREFIX) + len(QUESTION) + index, [token])
    assert node.prefixes.park(SeqKey(7), 0)
    node.engine.clear(0)
    node.engine.decode(0, 0, QUESTION)
    node.engine.clear(1)
    assert node.prefixes.resume(SeqKey(7), 1)
    np.testing.assert_array_equal(decode_tail(1, 4), uninterrupted)
    assert not node.prefixes.resume(SeqKey(7), 1)
    node.cache.shut_down()
