"""How far predicted TTFT and TPOT are from what requests met, on real agents.

    python -m bench.prediction --model FILE [--agents 2] [--seconds 100] [--rate 1.5]

A mixed workload is replayed from a fixed seed against a fleet of this machine: short chats,
questions over long documents (some over the same one), short and long answers, in an open
loop with exponential gaps. Every answer says what the hub predicted when it placed the
request and what the engine measured. Reported: the median and the 90th percentile of
|predicted - actual| / actual, and the median of predicted / actual, over all requests that
were sent after the first `--warm-up` seconds, by kind of request. What waited in the hub for
a device is predicted from the moment of its placement.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bench.load import Target
from bench.machine import machine
from bench.prompts import words
from bench.servers import shoal_fleet

RESULTS = Path(__file__).parent / "results" / "prediction.json"
TARGETS = {"ttft_ms": 0.25, "tpot_ms": 0.15}


@dataclass(frozen=True, slots=True)
class Job:
    """One request of the workload; `after_s` since the one before."""

    kind: str
    after_s: float
    content: str
    max_tokens: int


def workload(seconds: float, rate: float, seed: int = 11) -> list[Job]:
    """Half short chats, a third medium, the rest over documents of which some are repeated."""
    rng = random.Random(seed)
    documents = [words(rng, 600) for _ in range(4)]
    jobs, at_s = [], 0.0
    while at_s < seconds:
        gap_s = rng.expovariate(rate)
        at_s += gap_s
        kind = rng.choices(("short", "medium", "document"), (5, 3, 2))[0]
        content = {
            "short": f"Write a story about: {words(rng, rng.randint(8, 40))}.",
            "medium": f"{words(rng, rng.randint(80, 250))}. Which words are missing?",
            "document": f"{rng.choice(documents)}. What about {words(rng, 5)}?",
        }[kind]
        jobs.append(Job(kind, gap_s, content, rng.choice((8, 24, 48, 96))))
    return jobs


async def replay(target: Target, jobs: list[Job]) -> list[tuple[float, Job, dict[str, Any]]]:
    """Send all; (seconds since the start, job, the `shoal` object of its answer) of each."""
    seen: list[tuple[float, Job, dict[str, Any]]] = []
    began_s = time.monotonic()
    timeout = aiohttp.ClientTimeout(total=120)
    headers = {"authorization": f"Bearer {target.key}"}
    async with aiohttp.ClientSession(target.url, timeout=timeout, headers=headers) as session:

        async def ask(job: Job) -> None:
            sent_s = time.monotonic() - began_s
            body = {
                "model": target.model,
                "messages": [{"role": "user", "content": job.content}],
                "max_tokens": job.max_tokens,
            }
            async with session.post("/v1/chat/completions", json=body) as response:
                answer = await response.json()
            seen.append((sent_s, job, answer.get("shoal", {}) if response.ok else {}))

        async with asyncio.TaskGroup() as group:
            for job in jobs:
                await asyncio.sleep(job.after_s)
                group.create_task(ask(job))
    return seen


def figures(answers: list[tuple[Job, dict[str, Any]]]) -> dict[str, object]:
    """Errors by figure, over all requests and by kind."""
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for job, shoal in answers:
        for figure in TARGETS:
            predicted = (shoal.get("predicted") or {}).get(figure)
            actual = (shoal.get("actual") or {}).get(figure)
            if predicted and actual:
                pairs[figure, "all"].append((predicted, actual))
                pairs[figure, job.kind].append((predicted, actual))
    rows: dict[str, object] = {}
    for (figure, kind), both in sorted(pairs.items()):
        errors = sorted(abs(predicted - actual) / actual for predicted, actual in both)
        rows[f"{figure} {kind}"] = {
            "requests": len(both),
            "median_error": round(statistics.median(errors), 3),
            "p90_error": round(errors[int(0.9 * (len(errors) - 1))], 3),
            "median_predicted_over_actual": round(statistics.median(p / a for p, a in both), 3),
            "actual_median_ms": round(statistics.median(a for _, a in both), 1),
        }
    return rows


def main() -> None:
    """Run it and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds not counted")
    parser.add_argument("--rate", type=float, default=1.5, help="requests/s")
    given = parser.parse_args()
    with shoal_fleet(given.model, "--agents", str(given.agents)) as target:
        seen = asyncio.run(replay(target, workload(given.seconds, given.rate)))
    counted = [(job, shoal) for sent_s, job, shoal in seen if sent_s > given.warm_up]
    document = {
        "machine": machine(),
        # Above the number of cores, other work was in the way of these figures.
        "load_average": os.getloadavg()[0],
        "what": " ".join(sys.argv[1:]).replace(str(given.model), given.model.name),
        "requests": dict(Counter("answered" if shoal else "failed" for _, _, shoal in seen)),
        "targets_median_error": TARGETS,
        "figures": figures(counted),
    }
    print(json.dumps(document, indent=2))
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
