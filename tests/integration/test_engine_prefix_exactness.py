"""Any mix of restored blocks, idle and under load, gives the text of the cold run."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from shoal.v1 import inference_pb2 as pb
from tests.harness.engine_process import Answer, EngineClient, engine_client, running_engine
from tests.harness.models import smollm2_file

NUM_PROMPTS = 16
FLAGS = ("--context", "768", "--slots", "8", "--no-measure")
MAX_TOKENS = 6


def prompts() -> list[list[int]]:
    """Random prompts whose prefixes branch: of 128, of 256 and of odd lengths."""
    rng = random.Random(31)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(1000, 40_000) for _ in range(count)]

    stems = [tokens(length) for length in (128, 200, 256)]
    stems += [stem + tokens(100) for stem in stems]
    return [rng.choice(stems) + tokens(rng.choice((1, 2, 30, 130))) for _ in range(NUM_PROMPTS)]


async def run(client: EngineClient, prompt: list[int]) -> Answer:
    return await client.run(
        pb.GenerateRequest(
            tokens=pb.TokenPrompt(ids=prompt),
            sampling=pb.Sampling(temperature=0),
            max_tokens=MAX_TOKENS,
            ignore_eos=True,
        )
    )


def num_cached(answers: list[Answer], tier: str) -> int:
    return sum(a.finished.usage.cached_tokens_by_tier.get(tier, 0) for a in answers)


async def test_restored_prefixes_change_no_token(tmp_path: Path) -> None:
    asked = prompts()
    with running_engine(smollm2_file(), *FLAGS, "--no-prefix-cache") as without:
        async with engine_client(without) as client:
            cold = [(await run(client, prompt)).tokens for prompt in asked]
    caching = (*FLAGS, "--kv-dir", str(tmp_path))
    with running_engine(smollm2_file(), *caching) as engine:
        async with engine_client(engine) as client:
            together = await asyncio.gather(*(run(client, prompt) for prompt in asked))
            alone = [await run(client, prompt) for prompt in asked[:8]]
    # With little host memory blocks come and go; what is missing is on disk.
    with running_engine(smollm2_file(), *caching, "--kv-host-mib", "24") as again:
        async with engine_client(again) as client:
            reread = await asyncio.gather(*(run(client, prompt) for prompt in asked))
    assert [answer.tokens for answer in together] == cold
    assert [answer.tokens for answer in alone] == cold[:8]
    assert [answer.tokens for answer in reread] == cold
    assert num_cached(list(together), "host") >= 6 * 128
    # Each was asked before: all but its last token is there, or that and a short tail.
    lengths = [len(prompt) for prompt in asked[:8]]
    assert sum(n - 17 for n in lengths) <= num_cached(alone, "host") <= sum(n - 1 for n in lengths)
    assert num_cached(list(reread), "disk") >= 4 * 128
