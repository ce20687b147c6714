"""Greedy output does not depend on what else the engine runs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from shoal.v1 import inference_pb2 as pb
from tests.harness.engine_process import (
    EngineClient,
    EngineProcess,
    engine_client,
    running_engine,
)
from tests.harness.models import smollm2_file
from tests.harness.reference import Reference

MAX_TOKENS = 12
# Around the cuts at 128, and around 256, where llama.cpp's attention changes its ways.
LENGTHS = (1, 40, 127, 128, 129, 200, 250, 257, 300)
Case = tuple[list[int], list[int]]


@pytest.fixture(scope="module")
def cases() -> Iterator[list[Case]]:
    """Prompts of mixed lengths, with what a plain loop over llama.cpp generates."""
    reference = Reference(smollm2_file())
    rng = random.Random(11)
    words = reference.tokenize(
        "The sea was calm and the ships lay at anchor, while far away a storm was rising over "
        "the hills; nobody knew yet what the night would bring to the small town by the bay."
    )
    prompts = [[rng.choice(words) for _ in range(length)] for length in LENGTHS]
    yield [(prompt, reference.greedy(prompt, MAX_TOKENS)) for prompt in prompts]
    reference.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineProcess]:
    with running_engine(smollm2_file(), "--context", "1024", "--no-measure") as started:
        yield started


async def generate(client: EngineClient, prompt: list[int]) -> list[int]:
    answer = await client.run(
        pb.GenerateRequest(
            tokens=pb.TokenPrompt(ids=prompt),
            sampling=pb.Sampling(temperature=0),
            max_tokens=MAX_TOKENS,
        )
    )
    return answer.tokens


async def test_single_runs_equal_plain_llama_cpp(engine, cases):
    async with engine_client(engine) as client:
        for prompt, expected in cases[::3]:
            assert await generate(client, prompt) == expected


async def test_mixed_load_changes_nothing(engine, cases):
    async with engine_client(engine) as client:
        answers = await asyncio.gather(*(generate(client, prompt) for prompt, _ in cases))
    assert answers == [expected for _, expected in cases]


async def test_sampled_neighbours_and_cancellations_change_nothing(engine, cases):
    async with engine_client(engine) as client:
        noise = [
            await client.submit(
                pb.GenerateRequest(
                    tokens=pb.TokenPrompt(ids=prompt),
                    sampling=pb.Sampling(temperature=1.5, seed=3, frequency_penalty=0.5),
                    max_tokens=400,
                    ignore_eos=True,
                )
            )
            for prompt, _ in cases[2:6]
        ]

        async def cancel_one_by_one() -> None:
            for request_id in noise:
                while not (await client.update(request_id)).HasField("delta"):
                    pass
                await client.cancel(request_id)

        chosen = cases[::2]
        canceller = asyncio.create_task(cancel_one_by_one())
        answers = await asyncio.gather(*(generate(client, prompt) for prompt, _ in chosen))
        await canceller
    assert answers == [expected for _, expected in chosen]
