"""The two loads of bench.two_agents, whatever system answers: a closed loop and a burst."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import aiohttp

from bench.load import RequestFailed, Sample, Target, ask
from bench.prompts import short_prompts

CLIENTS = 16
BURST, BURST_TOKENS = 24, 96
# A burst on two healthy devices takes a quarter of it.
BURST_LIMIT_S = 120.0

Figures = dict[str, object]


@dataclass(frozen=True, slots=True)
class Way:
    """An endpoint, and the device that it is asked to use; empty: it chooses."""

    target: Target
    device: str = ""

    @property
    def extension(self) -> dict[str, object] | None:
        """The request's `shoal` field."""
        return {"device": self.device} if self.device else None


# Client and number of the request -> the way that it goes.
Choice = Callable[[int, int], Way]


@dataclass(frozen=True, slots=True)
class Loop:
    """Seconds of warm-up and of measuring, tokens of each answer."""

    warm_s: float
    measured_s: float
    tokens: int


@dataclass(slots=True)
class Window:
    """What counts: requests and tokens between two moments of perf_counter."""

    from_s: float
    to_s: float
    tokens: float = 0.0
    ttfts_ms: list[float] = field(default_factory=list)

    def add(self, started_s: float, sample: Sample) -> None:
        """Count the share of the tokens that came within the window, and a TTFT begun in it."""
        first_s = started_s + sample.ttft_ms / 1e3
        ended_s = started_s + sample.total_ms / 1e3
        inside_s = min(ended_s, self.to_s) - max(first_s, self.from_s)
        if inside_s > 0:
            self.tokens += sample.num_tokens * inside_s / max(ended_s - first_s, 1e-6)
        if self.from_s <= started_s < self.to_s:
            self.ttfts_ms.append(sample.ttft_ms)

    def figures(self) -> Figures:
        """As in the report; RuntimeError when the time was too short to say anything."""
        if len(self.ttfts_ms) < 5:
            raise RuntimeError("fewer than 5 requests began in the measured time; measure longer")
        return {
            "tokens_per_s": round(self.tokens / (self.to_s - self.from_s), 1),
            "requests": len(self.ttfts_ms),
            "ttft_p50_ms": round(statistics.median(self.ttfts_ms), 1),
            "ttft_p95_ms": round(statistics.quantiles(self.ttfts_ms, n=20)[-1], 1),
        }


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=600),
    )


async def closed_loop(choose: Choice, loop: Loop) -> Figures:
    """16 clients for a warm-up and a measured time."""
    prompts: Iterator[list[dict[str, str]]] = itertools.cycle(short_prompts(2_000, 11))
    numbers = itertools.count()
    begun = time.perf_counter()
    window = Window(begun + loop.warm_s, begun + loop.warm_s + loop.measured_s)
    async with _session() as session:

        async def client(which: int) -> None:
            while (started := time.perf_counter()) < window.to_s:
                way = choose(which, next(numbers))
                sample, _ = await ask(
                    session, way.target, next(prompts), loop.tokens, way.extension
                )
                window.add(started, sample)

        await asyncio.gather(*(client(which) for which in range(CLIENTS)))
    return window.figures()


async def burst(way: Way, begun: asyncio.Event) -> Figures:
    """24 requests at once; one that is lost is asked again, for at most two minutes in all."""
    failures: Counter[str] = Counter()
    ends_s: list[float] = []
    async with _session() as session:

        async def one(prompt: list[dict[str, str]]) -> None:
            while True:
                try:
                    await ask(session, way.target, prompt, BURST_TOKENS, way.extension)
                except RequestFailed as error:
                    failures[error.code or "other"] += 1
                except aiohttp.ClientError as error:
                    failures[type(error).__name__] += 1
                else:
                    ends_s.append(time.perf_counter() - started)
                    return
                await asyncio.sleep(0.1)

        started = time.perf_counter()
        begun.set()
        tasks = [asyncio.create_task(one(prompt)) for prompt in short_prompts(BURST, 23)]
        done, pending = await asyncio.wait(tasks, timeout=BURST_LIMIT_S)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for task in done:
            task.result()
    figures: Figures = {
        "all_finished_s": round(max(ends_s, default=0.0), 2),
        "median_finished_s": round(statistics.median(ends_s or [0.0]), 2),
        "asked_again": dict(failures),
    }
    if pending:
        figures |= {"unfinished": len(pending), "all_finished_s": BURST_LIMIT_S}
    return figures
