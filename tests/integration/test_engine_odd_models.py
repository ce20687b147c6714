"""Models whose KV is not one row for every token, in a real engine: windows, recurrent states."""

from __future__ import annotations

import random
from pathlib import Path

from shoal.blocks import BLOCK_TOKENS
from shoal.v1 import inference_pb2 as pb
from tests.harness.engine_process import EngineProcess, engine_client, running_engine
from tests.harness.tiny_recurrent_model import NUM_VOCAB as NUM_RECURRENT
from tests.harness.tiny_recurrent_model import write_tiny_recurrent_model
from tests.harness.tiny_window_model import NUM_VOCAB as NUM_WINDOW
from tests.harness.tiny_window_model import WINDOW_TOKENS, write_tiny_window_model

FLAGS = ("--context", "1024", "--slots", "2", "--no-measure")


def ask(tokens: list[int], tenant: bytes = b"tenant") -> pb.GenerateRequest:
    return pb.GenerateRequest(
        tokens=pb.TokenPrompt(ids=tokens),
        sampling=pb.Sampling(temperature=0),
        max_tokens=12,
        ignore_eos=True,
        tenant_salt=tenant,
    )


def prompts(num_vocab: int) -> list[list[int]]:
    """Behind one prefix that is longer than the window."""
    rng = random.Random(3)
    stem = [rng.randrange(3, num_vocab) for _ in range(3 * BLOCK_TOKENS)]
    return [[*stem, *(rng.randrange(3, num_vocab) for _ in range(25))] for _ in range(3)]


async def answers(engine: EngineProcess, asked: list[list[int]], tenants: list[bytes]):
    async with engine_client(engine) as client:
        got = [await client.run(ask(*each)) for each in zip(asked, tenants, strict=True)]
    return [each.tokens for each in got], [each.finished.usage.cached_tokens for each in got]


async def test_a_sliding_window_model_restores_prefixes_and_says_the_same(tmp_path: Path) -> None:
    assert WINDOW_TOKENS < 3 * BLOCK_TOKENS
    asked = prompts(NUM_WINDOW)
    with running_engine(write_tiny_window_model(tmp_path / "tiny.gguf"), *FLAGS) as engine:
        assert engine.report.caches_blocks, engine.report.no_cache_reason
        cold, none = await answers(engine, asked, [b"a", b"b", b"c"])
        warm, restored = await answers(engine, asked, [b"d", b"d", b"d"])
    assert none == [0, 0, 0]
    assert restored[0] == 0
    assert min(restored[1:]) >= 3 * BLOCK_TOKENS
    assert warm == cold
    assert len({tuple(each) for each in cold}) > 1


async def test_a_recurrent_model_serves_and_says_that_it_caches_nothing(tmp_path: Path) -> None:
    asked = prompts(NUM_RECURRENT)
    with running_engine(write_tiny_recurrent_model(tmp_path / "tiny.gguf"), *FLAGS) as engine:
        assert not engine.report.caches_blocks
        assert engine.report.no_cache_reason == "recurrent state cannot be cut into blocks"
        first, _ = await answers(engine, asked, [b"a"] * 3)
        again, cached = await answers(engine, asked, [b"a"] * 3)
    assert cached == [0, 0, 0]
    assert again == first
