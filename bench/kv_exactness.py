"""Greedy text with restored prefixes equals the cold run: 200 prompts, two devices, four ways.

    python -m bench.kv_exactness --model FILE [--prompts 200]

Prompts of random tokens share prefixes of several lengths. What a cold run says is
computed first, in this process, one sequence after another without any cache. Then a
fleet of two devices is asked, several at once: all on A (its memory), all on B (through
Redis), all on A again while urgent requests preempt them, and after a restart of the
fleet all on A (its disk). The run fails at the first text that differs, and where less
was restored than the prompts share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from agent.config import BLOCK_TOKENS, bound_spinning
from bench.load import Target
from bench.machine import machine
from bench.servers import shoal_fleet

RESULTS = Path(__file__).parent / "results"
# Ids of ordinary words in SmolLM2's vocabulary.
TOKEN_RANGE = (1000, 40000)
MAX_TOKENS = 20  # more than the 16 that a sequence computes before it can be preempted
CONTEXT, SLOTS = 768, 2
A, B = "local-1", "local-2"


@dataclass(slots=True)
class Outcome:
    """One way of asking all prompts."""

    texts_equal: int = 0
    cached_tokens_by_tier: Counter[str] = field(default_factory=Counter)

    def blocks(self, tier: str) -> int:
        """Whole blocks' worth of tokens that came from a tier."""
        return self.cached_tokens_by_tier[tier] // BLOCK_TOKENS


def main() -> None:
    """Run all ways, write bench/results/kv_exactness.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=200)
    options = parser.parse_args()
    prompts = make_prompts(options.prompts)
    cold = cold_texts(options.model, prompts)
    flags = ("--agents", "2", "--slots", str(SLOTS), "--context", str(CONTEXT))
    ways: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        home = Path(folder)
        with shoal_fleet(options.model, *flags, home=home) as target:
            rig = Rig(target, prompts, cold)
            ways["a_memory_under_load"] = asyncio.run(rig.ask_all(A))
            ways["b_through_redis"] = asyncio.run(rig.ask_all(B))
            before = preempted(target, home)
            ways["a_preempted"] = asyncio.run(rig.ask_all(A, urgent=True))
            preemptions = preempted(target, home) - before
        with shoal_fleet(options.model, *flags, home=home) as target:
            ways["a_disk_after_restart"] = asyncio.run(Rig(target, prompts, cold).ask_all(A))
    _require(ways["a_memory_under_load"].blocks("host") > 0, "no block came from memory")
    _require(ways["b_through_redis"].blocks("redis") > 0, "no block came through Redis")
    _require(ways["a_disk_after_restart"].blocks("disk") > 0, "no block came from disk")
    _require(preemptions >= options.prompts // 10, f"only {preemptions} preemptions")
    report = {
        "machine": machine(), "model": options.model.name, "prompts": options.prompts,
        "prompt_tokens": sum(map(len, prompts)), "completion_tokens_each": MAX_TOKENS,
        "preemptions": preemptions,
        "ways": {
            name: {
                "texts_equal_to_cold": way.texts_equal,
                "blocks_restored": {tier: way.blocks(tier) for tier in way.cached_tokens_by_tier},
                "tokens_restored": dict(way.cached_tokens_by_tier),
            }
            for name, way in ways.items()
        },
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "kv_exactness.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


def make_prompts(count: int) -> list[list[int]]:
    """Prompts whose prefixes branch at whole blocks and within them."""
    rng = random.Random(31)

    def tokens(number: int) -> list[int]:
        return [rng.randrange(*TOKEN_RANGE) for _ in range(number)]

    stems = [tokens(length) for length in (40, 128, 200, 256, 300)]
    stems += [stem + tokens(100) for stem in stems]
    return [rng.choice(stems) + tokens(rng.choice((1, 2, 17, 60))) for _ in range(count)]


def cold_texts(model: Path, prompts: list[list[int]]) -> list[str]:
    """What one sequence alone says, prefilled in whole chunks, nothing cached."""
    bound_spinning()
    # Late: the library is loaded with the module.
    from agent.engine.request import SamplingParams
    from agent.engine.runner import DecodeItem
    from agent.llama.context import ContextShape, LlamaRunner
    from agent.llama.library import open_library
    from agent.llama.model import Model

    runner = LlamaRunner(Model(model, open_library()), ContextShape(1, CONTEXT, 2))
    texts = []
    for prompt in prompts:
        runner.start(0, SamplingParams(temperature=0.0), ())
        sampled = None
        for start in range(0, len(prompt), BLOCK_TOKENS):
            chunk = prompt[start : start + BLOCK_TOKENS]
            sampled = runner.prefill(0, chunk, start, want_token=True)
        pieces = []
        for position in range(len(prompt), len(prompt) + MAX_TOKENS):
            _require(sampled is not None, "no token")
            token = sampled.token  # type: ignore[union-attr]
            pieces.append(runner.piece(token))
            sampled = runner.decode([DecodeItem(0, position, token)])[0]
        texts.append(b"".join(pieces).decode("utf-8", "replace"))
    runner.close()
    return texts


class Rig:
    """Asks one fleet all prompts and compares."""

    def __init__(self, target: Target, prompts: list[list[int]], cold: list[str]) -> None:
        self._target = target
        self._prompts = prompts
        self._cold = cold

    async def ask_all(self, device: str, *, urgent: bool = False) -> Outcome:
        """Every prompt once, as many at a time as the device has slots."""
        outcome, numbers = Outcome(), iter(range(len(self._prompts)))
        headers = {"Authorization": f"Bearer {self._target.key}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            clients = [self._client(session, device, numbers, outcome) for _ in range(SLOTS)]
            busy = asyncio.gather(*clients)
            others = asyncio.create_task(self._disturb(session, device)) if urgent else None
            await busy
            if others is not None:
                others.cancel()
        return outcome

    async def _client(
        self, session: aiohttp.ClientSession, device: str, numbers: Iterator[int], outcome: Outcome
    ) -> None:
        for number in numbers:
            text, tiers = await self._ask(session, device, self._prompts[number], -1)
            _require(
                text == self._cold[number],
                f"prompt {number} on {device}: {text!r}, cold: {self._cold[number]!r}, {tiers}",
            )
            outcome.texts_equal += 1
            outcome.cached_tokens_by_tier.update(tiers)

    async def _disturb(self, session: aiohttp.ClientSession, device: str) -> None:
        rng = random.Random(5)
        while True:
            prompt = [rng.randrange(*TOKEN_RANGE) for _ in range(8)]
            await self._ask(session, device, prompt, 5, max_tokens=2)

    async def _ask(
        self,
        session: aiohttp.ClientSession,
        device: str,
        prompt: list[int],
        priority: int,
        max_tokens: int = MAX_TOKENS,
    ) -> tuple[str, dict[str, int]]:
        body = {
            "model": self._target.model, "prompt": prompt, "max_tokens": max_tokens,
            "temperature": 0, "ignore_eos": True,
            "shoal": {"device": device, "priority": priority},
        }  # fmt: skip
        async with session.post(f"{self._target.url}/v1/completions", json=body) as response:
            answer = await response.json()
            _require(response.status == 200, f"HTTP {response.status}: {answer}")
            return answer["choices"][0]["text"], answer["shoal"]["cached_tokens_by_tier"]


def preempted(target: Target, home: Path) -> int:
    """Preemptions of device A so far."""

    async def scrape() -> str:
        key = (home / "keys" / "admin.key").read_text().strip()
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session,
            session.get(f"{target.url}/metrics") as response,
        ):
            return await response.text()

    found = re.findall(
        rf'^shoal_engine_preemptions\w*\{{.*"{A}".*\}} (\S+)', asyncio.run(scrape()), re.M
    )
    return int(sum(map(float, found)))


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise RuntimeError(text)


if __name__ == "__main__":
    main()
