"""What the fleet answers equals a plain llama.cpp run, token for token, idle and under load."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import httpx
import pytest

from tests.harness.fleet import Fleet
from tests.harness.models import smollm2_file
from tests.harness.reference import Reference

NUM_PROMPTS = 100
MAX_TOKENS = 16
# Around the cuts and across several of them, and as short as questions are.
LENGTHS = (1, 128, 17, 257, 60, 2, 400, 33, 127, 9, 255, 45, 129, 5, 200, 24, 256, 70, 3, 90)


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    reference = Reference(smollm2_file())
    yield reference
    reference.close()


@pytest.fixture(scope="module")
def expected(reference: Reference) -> list[tuple[list[int], str]]:
    rng = random.Random(5)
    prompts = [
        [rng.randrange(100, reference.vocab_size) for _ in range(LENGTHS[i % len(LENGTHS)])]
        for i in range(NUM_PROMPTS)
    ]
    return [(p, reference.text(reference.greedy(p, MAX_TOKENS))) for p in prompts]


def body(fleet_model: str, prompt: list[int]) -> dict[str, object]:
    return {"model": fleet_model, "prompt": prompt, "temperature": 0, "max_tokens": MAX_TOKENS}


def test_idle(fleet: Fleet, expected: list[tuple[list[int], str]]) -> None:
    model = fleet.model
    with fleet.http() as http:
        for prompt, text in expected[:24]:
            answer = http.post("/v1/completions", json=body(model, prompt))
            assert answer.json()["choices"][0]["text"] == text


def test_under_eight_way_mixed_load(fleet: Fleet, expected: list[tuple[list[int], str]]) -> None:
    model = fleet.model

    async def ask_all() -> list[str]:
        gate = asyncio.Semaphore(8)
        async with httpx.AsyncClient(
            base_url=fleet.url, headers={"Authorization": f"Bearer {fleet.key}"}, timeout=300
        ) as http:

            async def ask(prompt: list[int]) -> str:
                async with gate:
                    answer = await http.post("/v1/completions", json=body(model, prompt))
                    return str(answer.json()["choices"][0]["text"])

            return list(await asyncio.gather(*(ask(prompt) for prompt, _ in expected)))

    texts = asyncio.run(ask_all())
    different = [i for i, (_, text) in enumerate(expected) if texts[i] != text]
    assert different == []
