"""A real engine whose shared tier answers, hangs, lies or is gone: the text never changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from agent.kv.access import SharedAccess
from shoal.kv_fetch import parse_decision
from shoal.v1 import inference_pb2 as pb
from tests.harness.engine_process import (
    Answer,
    EngineClient,
    EngineProcess,
    engine_client,
    running_engine,
)
from tests.harness.models import smollm2_file
from tests.harness.redis_server import paused_redis, running_redis

NUM_BLOCKS = 2
NUM_PROMPTS = 4
FLAGS = ("--context", "512", "--slots", "2")


def prompt(number: int) -> list[int]:
    return list(range(1000 + 500 * number, 1000 + 500 * number + NUM_BLOCKS * 128 + 16))


def ask(number: int, *, privacy: int = pb.PRIVACY_ANY) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        tokens=pb.TokenPrompt(ids=prompt(number)),
        sampling=pb.Sampling(temperature=0),
        max_tokens=8,
        ignore_eos=True,
        hints=pb.RoutingHints(privacy=privacy),  # type: ignore[arg-type]
    )


def tiers(answer: Answer) -> dict[str, int]:
    assert answer.finished is not None
    return dict(answer.finished.usage.cached_tokens_by_tier)


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture(scope="module")
def access_file(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("home") / "kv-shared.json"
    path.write_bytes(SharedAccess(redis_url, "default", "any", b"s" * 32).to_json())
    return path


@pytest.fixture(scope="module")
def cold(redis_url: str, access_file: Path) -> list[list[int]]:
    """What another engine said; its blocks are in Redis, but for the last prompt's."""

    async def ask_all(engine: EngineProcess) -> list[Answer]:
        async with engine_client(engine) as client:
            shared = [await client.run(ask(number)) for number in range(NUM_PROMPTS)]
            private = ask(NUM_PROMPTS, privacy=pb.PRIVACY_LOCAL_ONLY)
            return [*shared, await client.run(private)]

    with running_engine(smollm2_file(), *FLAGS, "--kv-shared", str(access_file)) as first:
        answers = asyncio.run(ask_all(first))
    # The engine writes what is queued before it ends.
    with redis.Redis.from_url(redis_url) as store:
        assert store.dbsize() == NUM_PROMPTS * NUM_BLOCKS
    assert [tiers(answer) for answer in answers] == [{}] * (NUM_PROMPTS + 1)
    return [answer.tokens for answer in answers]


@pytest.fixture(scope="module")
def engine(cold: list[list[int]], access_file: Path) -> Iterator[EngineProcess]:
    with running_engine(smollm2_file(), *FLAGS, "--kv-shared", str(access_file)) as second:
        yield second


def test_a_device_whose_owner_shares_nothing_writes_and_reads_nothing(access_file, redis_url, cold):
    flags = (*FLAGS, "--kv-shared", str(access_file), "--kv-share", "never")

    async def ask_known_and_new(engine: EngineProcess) -> tuple[list[Answer], pb.EngineLoad, str]:
        async with engine_client(engine) as client:
            answers = [await client.run(ask(number)) for number in (0, NUM_PROMPTS + 9)]
            load = (await client.idle()).load
            return answers, load, (await client.describe()).block_space

    with redis.Redis.from_url(redis_url) as store:
        before = store.dbsize()
        with running_engine(smollm2_file(), *flags) as engine:
            answers, load, space = asyncio.run(ask_known_and_new(engine))
        assert store.dbsize() == before
    assert [tiers(answer) for answer in answers] == [{}, {}]
    assert answers[0].tokens == cold[0]
    assert (load.kv_sharing.policy, load.kv_sharing.not_shared) == ("never", "policy_never")
    assert load.counters["kv_not_shared_policy_never"] >= NUM_BLOCKS
    assert space == ""


async def run(client: EngineClient, number: int) -> Answer:
    return await client.run(ask(number))


async def test_answers_from_shared_blocks_equal_the_cold_run(engine, cold):
    async with engine_client(engine) as client:
        answer = await run(client, 0)
    assert tiers(answer) == {"redis": NUM_BLOCKS * 128}
    assert answer.tokens == cold[0]
    decision = parse_decision(answer.finished.timings.kv_decision)
    assert decision is not None
    assert (decision["fetch"], decision["num_blocks"]) == (True, NUM_BLOCKS)
    took_ms = answer.finished.timings.kv_restore_ms
    assert set(took_ms) == {"redis", "host"}
    assert all(0 < took_ms[tier] < answer.finished.timings.ttft_ms for tier in took_ms)


async def test_prompt_computed_for_another_device_ends_when_its_blocks_are_shared(
    engine, cold, redis_url
):
    request = ask(NUM_PROMPTS + 1)
    request.prefill_only = True
    async with engine_client(engine) as client:
        report = await client.describe()
        with redis.Redis.from_url(redis_url) as store:
            before = store.dbsize()
            answer = await client.run(request)
            assert store.dbsize() == before + NUM_BLOCKS
    assert len(report.block_space) == 64
    assert (answer.text, answer.tokens) == ("", [])


async def test_damaged_values_are_computed_anew(engine, cold, redis_url):
    with redis.Redis.from_url(redis_url) as store:
        for key in store.scan_iter("shoal:kv:*"):
            store.setrange(key, 1000, b"damaged")
    async with engine_client(engine) as client:
        answer = await run(client, 1)
        counters = (await client.idle()).load.counters
    assert (tiers(answer), answer.tokens) == ({}, cold[1])
    assert counters["kv_shared_damaged"] >= 1


async def test_a_hanging_tier_delays_but_never_fails(engine, cold, redis_url):
    async with engine_client(engine) as client:
        with paused_redis(redis_url):
            answer = await run(client, 2)
            again = await run(client, 3)  # the breaker is open by now
    assert [tiers(a) for a in (answer, again)] == [{}, {}]
    assert [answer.tokens, again.tokens] == cold[2:4]
    waited_ms = answer.finished.timings.queue_ms
    assert 300 < waited_ms < 5000  # it was tried, and given up


async def test_what_must_stay_local_was_not_shared(engine, cold):
    async with engine_client(engine) as client:
        answer = await run(client, NUM_PROMPTS)
    assert (tiers(answer), answer.tokens) == ({}, cold[NUM_PROMPTS])
