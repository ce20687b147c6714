"""What was preempted in a real engine says what it would have said undisturbed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from shoal.v1 import inference_pb2 as pb
from tests.harness.engine_process import EngineClient, EngineProcess, engine_client, running_engine
from tests.harness.models import smollm2_file

SLOTS = 2
FLAGS = ("--context", "1024", "--slots", str(SLOTS), "--no-measure")
MAX_TOKENS = 48
RNG = random.Random(5)
PROMPTS = [[RNG.randrange(1000, 40_000) for _ in range(length)] for length in (140, 20)]
GREEDY = pb.Sampling(temperature=0)
SEEDED = pb.Sampling(
    temperature=1.3, seed=77, top_k=50, top_p=0.95, frequency_penalty=0.6, repeat_penalty=1.1
)


def ask(
    prompt: list[int], sampling: pb.Sampling = GREEDY, *, priority: int = 0, **changes
) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        tokens=pb.TokenPrompt(ids=prompt),
        sampling=sampling,
        ignore_eos=True,
        hints=pb.RoutingHints(priority=priority),
        **{"max_tokens": MAX_TOKENS, **changes},
    )


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineProcess]:
    with running_engine(smollm2_file(), *FLAGS) as started:
        yield started


async def counter(client: EngineClient, name: str) -> float:
    return (await client.idle()).load.counters[name]


async def test_greedy_and_seeded_texts_are_the_same_with_and_without_preemptions(engine):
    asked = [ask(PROMPTS[0], SEEDED), ask(PROMPTS[1], GREEDY)]
    async with engine_client(engine) as client:
        alone = [(await client.run(each)).tokens for each in asked]
        assert await counter(client, "preemptions") == 0
        for each in asked:
            each.request_id = ""
        ids = [await client.submit(each) for each in asked]
        # Both run and are past the progress that a preemption asks for.
        begun = []
        for request_id in ids:
            begun.append([])
            while len(begun[-1]) < 20:
                begun[-1] += (await client.update(request_id)).delta.tokens
        urgent = [ask([500 + n] * 5, priority=1, max_tokens=8) for n in range(SLOTS)]
        quick = await asyncio.gather(*(client.run(each) for each in urgent))
        answers = [await client.answer(request_id) for request_id in ids]
        assert await counter(client, "preemptions") >= SLOTS
        # Of the last token of each only the choice is made, not its KV.
        assert await counter(client, "preempted_tokens_restored") >= 140 + 20 + 2 * 19
    assert all(len(answer.tokens) == 8 for answer in quick)
    assert [b + a.tokens for b, a in zip(begun, answers, strict=True)] == alone


async def test_a_preempted_prefill_goes_on_and_a_parked_one_can_be_cancelled(engine):
    long = [RNG.randrange(1000, 40_000) for _ in range(560)]
    async with engine_client(engine) as client:
        # Another tenant's blocks are not reused.
        alone = await client.run(ask(long, max_tokens=8, tenant_salt=b"other"))
        restored = await counter(client, "preempted_tokens_restored")
        computed = await counter(client, "prompt_tokens_computed")
        ids = [await client.submit(ask(prompt, max_tokens=8)) for prompt in (long, long[1:])]
        for request_id in ids:
            assert (await client.update(request_id)).HasField("admitted")
        urgent = [await client.submit(ask([7] * 5, priority=1, max_tokens=30)) for _ in ids]
        for request_id in urgent:
            while not (await client.update(request_id)).HasField("delta"):
                pass
        await client.cancel(ids[1])
        for request_id in urgent:
            await client.answer(request_id)
        answer = await client.answer(ids[0])
        restored = await counter(client, "preempted_tokens_restored") - restored
        spent = await counter(client, "prompt_tokens_computed") - computed
        report = await client.idle()
    assert answer.tokens == alone.tokens
    assert 128 <= restored < 560
    assert spent < 2 * 560
    assert report.load.kv_used_tokens == 0
