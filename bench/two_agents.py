"""Two real agents of which one is slow, or freezes: shoal's router against round robin.

    python -m bench.two_agents --model FILE [--seconds 40] [--rounds 1]

Each agent has a core and an engine thread of its own (on a machine with two or more).

Throttled: one engine runs a fifth of the time. A closed loop of 16 clients, routed by shoal,
then in turn to one and the other (the request names the device), then in fixed splits of the
clients, of which the best is the ideal. Tokens count that came within the measured time. The
warm-up lets the first answers of the slowed engine come, from which the router learns.

Frozen: 24 requests at once; a second later one whole device (agent and engine) gets SIGSTOP,
then, in a second run, its engine alone. A client whose stream is lost asks again. Compared
with the same 24 requests sent to the other device from the start.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from bench.load import RequestFailed, Sample, Target, ask
from bench.machine import machine
from bench.pair import NAMES, Pair, pair, stopped, throttled
from bench.prompts import short_prompts

RESULTS = Path(__file__).parent / "results"
FAST, SLOW = NAMES
CLIENTS, THROTTLE = 16, 5.0
SPLITS = [0, 1, 2, 3, 4, 5]

BURST, BURST_TOKENS, FREEZE_AFTER_S = 24, 96, 1.0


@dataclass(frozen=True, slots=True)
class Loop:
    """Seconds of warm-up and of measuring, tokens of each answer."""

    warm_s: float
    measured_s: float
    tokens: int


# Client and number of the request -> device to name; empty: the router chooses.
Choice = Callable[[int, int], str]
Figures = dict[str, object]


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


async def closed_loop(target: Target, choose: Choice, loop: Loop) -> Figures:
    """16 clients for a warm-up and a measured time."""
    prompts: Iterator[list[dict[str, str]]] = itertools.cycle(short_prompts(2_000, 11))
    numbers = itertools.count()
    begun = time.perf_counter()
    window = Window(begun + loop.warm_s, begun + loop.warm_s + loop.measured_s)
    async with _session() as session:

        async def client(which: int) -> None:
            while (started := time.perf_counter()) < window.to_s:
                device = choose(which, next(numbers))
                extension: dict[str, object] | None = {"device": device} if device else None
                sample, _ = await ask(session, target, next(prompts), loop.tokens, extension)
                window.add(started, sample)

        await asyncio.gather(*(client(which) for which in range(CLIENTS)))
    return window.figures()


def run_throttled(running: Pair, loop: Loop, counts: list[int]) -> Figures:
    """Shoal, round robin and the fixed splits, one engine throttled all the while."""
    with throttled(running.engine(SLOW), THROTTLE):
        shoal = asyncio.run(closed_loop(running.target, lambda _, __: "", loop))
        _say("shoal", shoal)
        round_robin = asyncio.run(
            closed_loop(running.target, lambda _, number: NAMES[number % 2], loop)
        )
        _say("round robin", round_robin)
        splits = {}
        for count in counts:
            choose = _split(count)
            splits[count] = asyncio.run(closed_loop(running.target, choose, loop))
            _say(f"{count} of {CLIENTS} clients on the slow device", splits[count])
    ideal = max(float(str(split["tokens_per_s"])) for split in splits.values())
    return {
        "shoal": shoal,
        "round_robin": round_robin,
        "splits_clients_on_slow": splits,
        "throughput_to_ideal": _ratio(shoal["tokens_per_s"], ideal),
        "ttft_p95_to_round_robin": _ratio(shoal["ttft_p95_ms"], round_robin["ttft_p95_ms"]),
    }


def _split(count: int) -> Choice:
    return lambda client, _: SLOW if client < count else FAST


async def burst(target: Target, device: str, begun: asyncio.Event) -> Figures:
    """24 requests at once, to `device` or as the router likes; asked again when lost."""
    failures: Counter[str] = Counter()
    async with _session() as session:

        async def one(prompt: list[dict[str, str]]) -> float:
            extension: dict[str, object] | None = {"device": device} if device else None
            while True:
                try:
                    await ask(session, target, prompt, BURST_TOKENS, extension)
                    return time.perf_counter() - started
                except RequestFailed as error:
                    if error.code not in ("device_lost", "engine_crashed", "overloaded"):
                        raise
                    failures[error.code] += 1
                    await asyncio.sleep(0.1)

        started = time.perf_counter()
        begun.set()
        ends_s = await asyncio.gather(*(one(p) for p in short_prompts(BURST, 23)))
    return {
        "all_finished_s": round(max(ends_s), 2),
        "median_finished_s": round(statistics.median(ends_s), 2),
        "asked_again": dict(failures),
    }


async def _burst_with_freeze(running: Pair, *, whole: bool) -> Figures:
    begun = asyncio.Event()
    load = asyncio.create_task(burst(running.target, "", begun))
    await begun.wait()
    await asyncio.sleep(FREEZE_AFTER_S)
    with stopped(running.processes(SLOW) if whole else [running.engine(SLOW)]):
        return await load


def run_frozen(running: Pair) -> Figures:
    """The burst with one device frozen, with its engine frozen, and with the other alone."""
    report: Figures = {}
    alone = asyncio.run(burst(running.target, FAST, asyncio.Event()))
    report["other_alone"] = alone
    _say("the other device alone", alone)
    for name, whole in (("device_frozen", True), ("engine_frozen", False)):
        figures = asyncio.run(_burst_with_freeze(running, whole=whole))
        _say(name, figures)
        report[name] = {
            **figures, "to_alone": _ratio(figures["all_finished_s"], alone["all_finished_s"]),
        }  # fmt: skip
        running.wait_ready()
    return report


def _ratio(figure: object, of: object) -> float:
    return round(float(str(figure)) / float(str(of)), 3)


def _say(what: str, figures: Figures) -> None:
    print(f"{what}: {json.dumps(figures)}", file=sys.stderr, flush=True)


def main() -> None:
    """Parse arguments, run, write bench/results/two_agents.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=40.0, help="measured, of each loop")
    parser.add_argument("--warm", type=float, default=30.0, help="seconds before, not measured")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer, throttled")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--part", choices=("both", "frozen", "throttled"), default="both")
    parser.add_argument(
        "--splits", type=int, nargs="+", default=SPLITS, help="clients on the slow device"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "two_agents.json")
    options = parser.parse_args()
    loop = Loop(options.warm, options.seconds, options.tokens)
    rounds = []
    for _ in range(options.rounds):
        with pair(options.model.absolute(), slots=8) as running:
            figures: Figures = {}
            if options.part != "throttled":
                figures["frozen"] = run_frozen(running)
            if options.part != "frozen":
                figures["throttled"] = run_throttled(running, loop, options.splits)
            rounds.append(figures)
    report = {
        "machine": machine(), "model": options.model.name, "clients": CLIENTS,
        "throttle": THROTTLE, "burst": BURST, "seconds": options.seconds, "tokens": options.tokens,
        "rounds": rounds,
    }  # fmt: skip
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(rounds, indent=1))


if __name__ == "__main__":
    main()
