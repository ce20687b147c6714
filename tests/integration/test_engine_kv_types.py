"""A KV cache of q8_0: as exact as one of f16, and its blocks are nobody else's."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.calibration.choosing import Candidate
from agent.calibration.trial import try_candidate
from shoal.v1 import inference_pb2 as pb
from tests.harness.engine_process import (
    Answer,
    EngineClient,
    EngineProcess,
    engine_client,
    running_engine,
)
from tests.harness.models import smollm2_file

FLAGS = ("--context", "512", "--slots", "4", "--no-measure")
Q8_0 = (*FLAGS, "--kv-type", "q8_0")
MAX_TOKENS = 6
# Around the cuts at 128, and around 256, where llama.cpp's own attention changes its ways.
LENGTHS = (40, 129, 200, 257, 300)


def prompts() -> list[list[int]]:
    """Of one stem, so that each finds blocks of the one before."""
    rng = random.Random(41)
    stem = [rng.randrange(1000, 40_000) for _ in range(max(LENGTHS))]
    return [[*stem[:length], rng.randrange(1000, 40_000)] for length in LENGTHS]


async def run(client: EngineClient, prompt: list[int]) -> Answer:
    return await client.run(
        pb.GenerateRequest(
            tokens=pb.TokenPrompt(ids=prompt),
            sampling=pb.Sampling(temperature=0),
            max_tokens=MAX_TOKENS,
            ignore_eos=True,
        )
    )


async def one_by_one(engine: EngineProcess) -> list[Answer]:
    async with engine_client(engine) as client:
        return [await run(client, prompt) for prompt in prompts()]


def tokens(answers: list[Answer]) -> list[list[int]]:
    return [answer.tokens for answer in answers]


def num_cached(answers: list[Answer], tier: str) -> int:
    return sum(a.finished.usage.cached_tokens_by_tier.get(tier, 0) for a in answers)


@pytest.fixture(scope="module")
def cold() -> Iterator[EngineProcess]:
    with running_engine(smollm2_file(), *Q8_0, "--no-prefix-cache") as engine:
        yield engine


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kv")


async def test_batched_text_equals_a_single_run(cold: EngineProcess) -> None:
    alone = await one_by_one(cold)
    async with engine_client(cold) as client:
        together = await asyncio.gather(*(run(client, prompt) for prompt in prompts()))
    assert tokens(list(together)) == tokens(alone)
    assert (cold.report.kv_type, cold.report.kv_bytes_per_token) == ("q8_0", 12_240)


async def test_restored_text_equals_the_cold_run_from_memory_and_disk(
    cold: EngineProcess, kept: Path
) -> None:
    expected = tokens(await one_by_one(cold))
    with running_engine(smollm2_file(), *Q8_0, "--kv-dir", str(kept)) as engine:
        first, again = await one_by_one(engine), await one_by_one(engine)
    assert tokens(first) == tokens(again) == expected
    assert num_cached(again, "host") >= sum(length // 128 * 128 for length in LENGTHS)
    with running_engine(smollm2_file(), *Q8_0, "--kv-dir", str(kept)) as restarted:
        reread = await one_by_one(restarted)
    assert tokens(reread) == expected
    assert num_cached(reread, "disk") >= 2 * 128


async def test_blocks_of_another_type_are_foreign(kept: Path) -> None:
    assert os.listdir(kept)  # what the test above left
    with running_engine(smollm2_file(), *FLAGS, "--kv-dir", str(kept)) as f16:
        async with engine_client(f16) as client:
            answer = await run(client, prompts()[-1])
    assert f16.report.kv_type == "f16"
    assert not answer.finished.usage.cached_tokens_by_tier


async def test_trial_of_a_candidate_tells_what_its_engine_found() -> None:
    file = smollm2_file()
    outcomes = [
        await try_candidate(Candidate(file, kv_type=kv_type), 300.0) for kv_type in ("f16", "q8_0")
    ]
    assert all(outcome.serves for outcome in outcomes), outcomes
    # Our attention reads both types alike: what holds of one holds of the other.
    f16, q8_0 = ((outcome.invariant, outcome.any_cut) for outcome in outcomes)
    assert f16 == q8_0
