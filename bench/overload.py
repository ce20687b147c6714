"""Twenty times more requests than a fleet can answer: who is refused, and who is served in time.

    python -m bench.overload --model FILE [--factor 20] [--seconds 60] [--ttft-ms 2000]

A closed loop first measures what one device answers (requests/s with every slot busy). Then
requests come in an open loop at `factor` times that rate, evenly spaced, from three tenants,
one of whom sends half of them. Each states a TTFT objective and asks to be refused rather than
served late; nobody repeats a refused request. Reported: how the gateway's and the hub's
resident memory grows, the latency of refusals and whether they name a time to retry, which
share of the accepted met its objective, and the goodput against the closed loop's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil

from bench.load import Target, closed_loop
from bench.machine import machine
from bench.prompts import short_prompts
from bench.servers import SHOAL, fleet_environment, shoal_fleet

RESULTS = Path(__file__).parent / "results"
MAX_TOKENS, SLOTS = 32, 8
SAMPLE_INTERVAL_S = 0.25
# Requests of each tenant in ten.
TENANTS = {"flood": 5, "second": 3, "third": 2}
_PROCESSES = {"hub": "ray::HubActor", "gateway": "ray::ServeReplica"}


@dataclass(slots=True)
class Tally:
    """What became of the offered requests; times in ms from sending."""

    ttfts_ms: list[float] = field(default_factory=list)
    # When each of these was sent, in s of perf_counter.
    sent_s: list[float] = field(default_factory=list)
    refusals_ms: list[float] = field(default_factory=list)
    no_retry_after: int = 0
    served: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)


class Memory:
    """Resident memory of hub and gateway while a load runs, in MiB."""

    def __init__(self, home: Path) -> None:
        supervisor = json.loads((home / "run" / "up.json").read_text())["supervisor"]["pid"]
        self._processes = {name: [] for name in _PROCESSES}
        for process in psutil.Process(supervisor).children(recursive=True):
            title = " ".join(process.cmdline())
            for name, prefix in _PROCESSES.items():
                if title.startswith(prefix):
                    self._processes[name].append(process)
        missing = [name for name, found in self._processes.items() if not found]
        if missing:
            raise RuntimeError(f"no process found of {missing}")
        self.first = self.last = self.read()
        self.highest = dict(self.first)

    def read(self) -> dict[str, float]:
        """Now, by part."""
        return {
            name: sum(each.memory_info().rss for each in found) / 2**20
            for name, found in self._processes.items()
        }

    async def watch(self) -> None:
        """Sample until cancelled."""
        while True:
            self.last = self.read()
            self.highest = {name: max(self.highest[name], self.last[name]) for name in self.last}
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    def report(self) -> dict[str, object]:
        """Growth over the first reading, at its highest and at the end."""
        grown = sum(self.highest.values()) - sum(self.first.values())
        return {
            "before_mib": _rounded(self.first),
            "highest_mib": _rounded(self.highest),
            "after_mib": _rounded(self.last),
            "grown_mib": round(grown, 1),
        }


async def offer(
    session: aiohttp.ClientSession, target: Target, messages: list[dict[str, str]], ttft_ms: float,
    key: tuple[str, str], tally: Tally,
) -> None:  # fmt: skip
    """Send one request of tenant `key[0]` and count what became of it."""
    body = {
        "model": target.model,
        "messages": messages,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        "shoal": {"slo": {"ttft_ms": ttft_ms}, "on_slo_miss": "refuse"},
    }
    started = time.perf_counter()
    async with session.post(
        f"{target.url}/v1/chat/completions",
        json=body,
        headers={"Authorization": f"Bearer {key[1]}"},
    ) as answer:
        if answer.status != 200:
            error = (await answer.json())["error"]
            tally.refusals_ms.append((time.perf_counter() - started) * 1e3)
            tally.codes[f"{answer.status} {error['code']}"] += 1
            tally.no_retry_after += "Retry-After" not in answer.headers
            return
        first_ms, done = 0.0, False
        async for line in answer.content:
            if not first_ms and b'"content":' in line and b'"content":""' not in line:
                first_ms = (time.perf_counter() - started) * 1e3
            done = done or line.startswith(b"data: [DONE]")
        if done:
            tally.ttfts_ms.append(first_ms)
            tally.sent_s.append(started)
            tally.served[key[0]] += 1
        tally.codes["200" if done else "broken off"] += 1


async def overload(
    target: Target, keys: dict[str, str], per_s: float, options: argparse.Namespace, memory: Memory
) -> tuple[Tally, float]:
    """The open loop; the tally, and the seconds until the last was answered."""
    tally = Tally()
    order = [name for name, share in TENANTS.items() for _ in range(share)]
    prompts = short_prompts(int(per_s * options.seconds), 500)
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        watch = asyncio.create_task(memory.watch())
        started, tasks = time.perf_counter(), []
        for number, messages in enumerate(prompts):
            await asyncio.sleep(started + number / per_s - time.perf_counter())
            # Spread: 7 and 10 have no common divisor.
            tenant = order[number * 7 % len(order)]
            key = (tenant, keys[tenant])
            tasks.append(
                asyncio.create_task(offer(session, target, messages, options.ttft_ms, key, tally))
            )
        await asyncio.gather(*tasks)
        wall_s = time.perf_counter() - started
        watch.cancel()
    return tally, wall_s


def main() -> None:
    """Parse arguments, run, write bench/results/overload.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--factor", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ttft-ms", type=float, default=2_000.0)
    parser.add_argument("--warm-up", type=int, default=64, help="requests of the closed loop")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        home = Path(folder)
        fleet = ("--slots", str(SLOTS), "--context", "2048")
        with shoal_fleet(options.model, *fleet, home=home) as target:
            keys = {name: _key(home, name) for name in TENANTS}
            asyncio.run(closed_loop(target, short_prompts(SLOTS, 99), SLOTS, MAX_TOKENS))
            prompts = short_prompts(options.warm_up, 100)
            loop = asyncio.run(closed_loop(target, prompts, SLOTS, MAX_TOKENS))
            capacity_per_s = len(loop.samples) / loop.wall_s
            memory = Memory(home)
            tally, wall_s = asyncio.run(
                overload(target, keys, options.factor * capacity_per_s, options, memory)
            )
    report = {
        "machine": machine(),
        "model": options.model.name,
        "objective_ttft_ms": options.ttft_ms,
        "seconds": options.seconds,
        "capacity_requests_per_s": round(capacity_per_s, 2),
        "offered_requests_per_s": round(options.factor * capacity_per_s, 1),
        "outcomes": dict(tally.codes),
        "memory": memory.report(),
        **figures(tally, wall_s, capacity_per_s, options.ttft_ms),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "overload.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


def figures(
    tally: Tally, wall_s: float, capacity_per_s: float, ttft_ms: float
) -> dict[str, object]:
    """The figures that are judged."""
    met = sum(each <= ttft_ms for each in tally.ttfts_ms)
    return {
        "refusal_p50_ms": _percentile(tally.refusals_ms, 50),
        "refusal_p99_ms": _percentile(tally.refusals_ms, 99),
        "refusals_without_retry_after": tally.no_retry_after,
        "accepted": len(tally.ttfts_ms),
        "accepted_ttft_p50_ms": _percentile(tally.ttfts_ms, 50),
        "accepted_ttft_p99_ms": _percentile(tally.ttfts_ms, 99),
        "accepted_that_met_objective": round(met / max(1, len(tally.ttfts_ms)), 4),
        # Of those sent in each quarter of the time: whether it learns.
        "met_by_quarter": _met_by_quarter(tally, ttft_ms),
        "goodput_of_capacity": round(met / wall_s / capacity_per_s, 3),
        "served_by_tenant": dict(tally.served),
    }


def _met_by_quarter(tally: Tally, ttft_ms: float) -> list[str]:
    if not tally.sent_s:
        return []
    first, last = min(tally.sent_s), max(tally.sent_s)
    quarters: list[list[bool]] = [[], [], [], []]
    for sent_s, each_ms in zip(tally.sent_s, tally.ttfts_ms, strict=True):
        quarter = min(3, int(4 * (sent_s - first) / max(last - first, 1e-9)))
        quarters[quarter].append(each_ms <= ttft_ms)
    return [f"{sum(quarter)} of {len(quarter)}" for quarter in quarters]


def _percentile(values: list[float], percent: int) -> float | None:
    if len(values) < 2:
        return round(values[0], 1) if values else None
    return round(statistics.quantiles(values, n=100)[percent - 1], 1)


def _rounded(parts: dict[str, float]) -> dict[str, float]:
    return {name: round(mib, 1) for name, mib in parts.items()}


def _key(home: Path, tenant: str) -> str:
    command = [SHOAL, "keys", "create", "--tenant", tenant, "--json"]
    reply = subprocess.check_output(command, env=fleet_environment(home))
    return str(json.loads(reply)["key"])


if __name__ == "__main__":
    sys.exit(main())
