"""Cached prefixes in a real engine: what is restored, and that it changes no text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from shoal.blocks import BLOCK_TOKENS
from shoal.v1 import inference_pb2 as pb
from tests.harness.engine_process import (
    Answer,
    EngineClient,
    EngineProcess,
    engine_client,
    running_engine,
)
from tests.harness.models import smollm2_file

FLAGS = ("--context", "1536", "--slots", "8")
WORDS = tuple("sea calm ship lay anchor while far storm rise over hill night town".split())  # noqa: SIM905
PREFIX_WORDS = 700


def long_text(seed: int, num_words: int = PREFIX_WORDS) -> str:
    return " ".join(WORDS[(seed + index * index) % len(WORDS)] for index in range(num_words))


def ask(prompt: str, *, tenant: bytes = b"tenant", max_tokens: int = 12) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        text=prompt,
        sampling=pb.Sampling(temperature=0),
        max_tokens=max_tokens,
        ignore_eos=True,
        tenant_salt=tenant,
    )


def cached(answer: Answer) -> int:
    assert answer.finished is not None
    return answer.finished.usage.cached_tokens


async def computed(client: EngineClient) -> float:
    return (await client.idle()).load.counters["prompt_tokens_computed"]


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineProcess]:
    with running_engine(smollm2_file(), *FLAGS) as started:
        yield started


def test_the_report_says_that_prefixes_are_cached(engine):
    assert engine.report.caches_blocks
    assert not engine.report.no_cache_reason


async def test_a_restored_prefix_gives_the_text_of_the_cold_run(engine):
    prompts = [long_text(1, 300) + f" question {number}?" for number in range(3)]
    with running_engine(smollm2_file(), *FLAGS, "--no-measure", "--no-prefix-cache") as without:
        assert without.report.no_cache_reason == "switched off"
        async with engine_client(without) as client:
            cold = [await client.run(ask(prompt)) for prompt in prompts]
    async with engine_client(engine) as client:
        first, *warm = [await client.run(ask(prompt)) for prompt in prompts]
        again = await client.run(ask(prompts[0]))
    assert [a.tokens for a in (first, *warm)] == [a.tokens for a in cold]
    assert again.tokens == first.tokens
    assert [cached(a) for a in (*cold, first)] == [0, 0, 0, 0]
    num_prompt = cold[0].admitted.prompt_tokens
    assert num_prompt > 2 * BLOCK_TOKENS
    # All that is the same, whole blocks or not; the last token is always computed.
    assert again.finished.usage.cached_tokens_by_tier == {"host": num_prompt - 1}
    for answer in warm:
        assert num_prompt - 5 <= cached(answer) < num_prompt - 1


async def test_requests_together_compute_their_cold_prefix_once(engine):
    prefix = long_text(2)
    async with engine_client(engine) as client:
        before = await computed(client)
        answers = await asyncio.gather(
            *(client.run(ask(f"{prefix} question {number}?")) for number in range(8))
        )
        spent = await computed(client) - before
    lengths = [answer.admitted.prompt_tokens for answer in answers]
    prefix_blocks = (min(lengths) - 5) // BLOCK_TOKENS
    assert prefix_blocks >= 5
    assert sorted(map(cached, answers)) == [0] + [prefix_blocks * BLOCK_TOKENS] * 7
    assert spent == sum(lengths) - 7 * prefix_blocks * BLOCK_TOKENS


async def test_a_sequence_that_waits_holds_up_nobody_and_can_be_cancelled(engine):
    prefix = long_text(3, 350)
    async with engine_client(engine) as client:
        owner = await client.submit(ask(prefix + " one?"))
        waiting = [await client.submit(ask(f"{prefix} two {n}?")) for n in range(8)]
        short = await client.run(ask("The sky is", max_tokens=2))
        await client.cancel(owner)  # who waited for it goes on alone
        await client.cancel(waiting[0])
        answers = [await client.answer(request_id) for request_id in waiting[1:]]
        report = await client.idle()
    assert short.finished is not None
    assert all(answer.finished is not None for answer in answers)
    assert sum(1 for answer in answers if cached(answer) >= 2 * BLOCK_TOKENS) >= 6
    assert report.load.kv_used_tokens == 0


async def test_another_tenant_shares_nothing(engine):
    prompt = long_text(4, 200)
    async with engine_client(engine) as client:
        mine = await client.run(ask(prompt))
        theirs = await client.run(ask(prompt, tenant=b"other"))
    assert (cached(theirs), theirs.tokens) == (0, mine.tokens)


async def test_a_reply_is_part_of_the_next_turns_prefix(engine):
    prompt = long_text(6, 150)
    with running_engine(smollm2_file(), *FLAGS, "--no-measure", "--no-prefix-cache") as without:
        async with engine_client(without) as client:
            reply = await client.run(ask(prompt, max_tokens=40))
            cold = await client.run(ask(prompt + reply.text + " And then?"))
    async with engine_client(engine) as client:
        assert (await client.run(ask(prompt, max_tokens=40))).tokens == reply.tokens
        warm = await client.run(ask(prompt + reply.text + " And then?"))
    assert warm.tokens == cold.tokens
    assert cached(warm) >= reply.admitted.prompt_tokens + 32


async def test_less_than_16_tokens_never_enter_the_cache(engine):
    async with engine_client(engine) as client:
        # What an earlier test computed may still be on its way into memory.
        before, last = (await client.idle()).load.host_kv_bytes, -1
        while before != last:
            await asyncio.sleep(1.0)
            before, last = (await client.idle()).load.host_kv_bytes, before
        await client.run(ask("The sky is", max_tokens=5))
        assert (await client.idle()).load.host_kv_bytes == before


async def test_blocks_on_disk_survive_the_death_of_the_engine(tmp_path):
    flags = (*FLAGS, "--no-measure", "--kv-dir", str(tmp_path))
    prompt = long_text(5, 300)
    with running_engine(smollm2_file(), *flags) as first:
        async with engine_client(first) as client:
            cold = await client.run(ask(prompt))
            num_blocks = cold.admitted.prompt_tokens // BLOCK_TOKENS
            async with asyncio.timeout(20):
                # And the partial block behind the whole ones.
                while len(list(tmp_path.rglob("*.kv"))) < num_blocks + 1:
                    await client.describe()
        first.process.kill()
        first.process.wait(20)
    with running_engine(smollm2_file(), *flags) as second:
        async with engine_client(second) as client:
            warm = await client.run(ask(prompt))
            report = await client.idle()
    assert num_blocks >= 2
    assert warm.finished.usage.cached_tokens_by_tier == {"disk": cold.admitted.prompt_tokens - 1}
    assert warm.tokens == cold.tokens
    assert report.load.disk_kv_bytes > 0
    assert [path.stat().st_mode & 0o777 for path in tmp_path.glob("secret")] == [0o600]


async def test_a_conversation_goes_on_from_disk_where_a_clean_end_left_it(tmp_path):
    flags = (*FLAGS, "--no-measure", "--kv-dir", str(tmp_path))
    talks = [long_text(number, 150) for number in range(1, 4)]
    found, most = [], []
    for turn in range(4):
        with running_engine(smollm2_file(), *flags) as engine:
            async with engine_client(engine) as client:
                # Long enough to be worth keeping: a turn adds more than 16 tokens.
                asked = [ask(talk, max_tokens=40) for talk in talks]
                answers = await asyncio.gather(*map(client.run, asked))
        found.append([cached(answer) for answer in answers])
        computed = [answer.admitted.prompt_tokens + len(answer.tokens) - 1 for answer in answers]
        if turn:
            # Text may be cut into other tokens where an answer ended, or begin the same.
            assert all(f >= m - 4 for f, m in zip(found[turn], most[turn - 1], strict=True))
        most.append(computed)
        talks = [t + a.text + " And then?" for t, a in zip(talks, answers, strict=True)]
    assert min(most[0]) > BLOCK_TOKENS
