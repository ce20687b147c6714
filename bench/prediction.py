"""How far predicted TTFT and TPOT are from what requests met, on real agents.

    python -m bench.prediction --model FILE [--seconds 120] [--rate 1.0] [--record FILE]

A mixed workload is replayed from a fixed seed against two agents, a core each, as devices of
their own: short chats, questions over long documents (some over the same one), short and long
answers, in an open loop with exponential gaps. Every answer says what the hub predicted when
it placed the request and what the engine measured. Reported: the median and the 90th
percentile of |predicted - actual| / actual, and the median of predicted / actual, over all
requests that were sent after the first `--warm-up` seconds, by kind of request. What waited
in the hub for a device is predicted from the moment of its placement.

Beside it stands what could be had: `constant`, the one value that fits these answers best;
`oracle`, a fit to these answers, after the event, of what is known at a placement (length,
what is cached, the requests and prompts on the device), and `hindsight`, the same with what
came afterwards. What even these miss is the machine's doing, or chance (bench/oracle.py).
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bench.load import Target
from bench.machine import machine
from bench.oracle import Served, oracle
from bench.pair import pair
from bench.prompts import words

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


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a job; `sent_s` since the start."""

    sent_s: float
    kind: str
    shoal: dict[str, Any]
    usage: dict[str, Any]


async def replay(target: Target, jobs: list[Job]) -> list[Answer]:
    """Send all; an answer without `shoal` is a failure."""
    seen: list[Answer] = []
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
                answer = await response.json() if response.ok else {}
            seen.append(Answer(sent_s, job.kind, answer.get("shoal", {}), answer.get("usage", {})))

        async with asyncio.TaskGroup() as group:
            for job in jobs:
                await asyncio.sleep(job.after_s)
                group.create_task(ask(job))
    return seen


def served(answers: list[Answer]) -> list[Served]:
    """The answers as the oracle takes them."""
    return [
        Served(
            device=answer.shoal["device"],
            placed_ms=answer.sent_s * 1e3 + answer.shoal["actual"]["hub_queue_ms"],
            ttft_ms=answer.shoal["actual"]["ttft_ms"],
            tpot_ms=answer.shoal["actual"]["tpot_ms"],
            total_ms=answer.shoal["actual"]["total_ms"],
            prompt_tokens=answer.usage["prompt_tokens"],
            cached_tokens=(answer.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
            completion_tokens=answer.usage["completion_tokens"],
        )
        for answer in answers
        if answer.shoal and answer.shoal["actual"]["tpot_ms"]
    ]


def figures(answers: list[Answer]) -> dict[str, object]:
    """Errors by figure, over all requests and by kind."""
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for answer in answers:
        for figure in TARGETS:
            predicted = (answer.shoal.get("predicted") or {}).get(figure)
            actual = (answer.shoal.get("actual") or {}).get(figure)
            if predicted and actual:
                pairs[figure, "all"].append((predicted, actual))
                pairs[figure, answer.kind].append((predicted, actual))
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
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds not counted")
    parser.add_argument("--rate", type=float, default=1.0, help="requests/s")
    parser.add_argument("--slots", type=int, default=4, help="of each agent")
    parser.add_argument("--record", type=Path, help="write each answer's figures there")
    given = parser.parse_args()
    with pair(given.model.absolute(), slots=given.slots) as running:
        seen = asyncio.run(replay(running.target, workload(given.seconds, given.rate)))
    if given.record:
        given.record.write_text("".join(json.dumps(asdict(answer)) + "\n" for answer in seen))
    counted = [answer for answer in seen if answer.sent_s > given.warm_up]
    document = {
        "machine": machine(),
        # Above the number of cores, other work was in the way of these figures.
        "load_average": os.getloadavg()[0],
        "what": " ".join(sys.argv[1:]).replace(str(given.model), given.model.name),
        "requests": dict(Counter("answered" if answer.shoal else "failed" for answer in seen)),
        "targets_median_error": TARGETS,
        "best_possible_median_error": oracle(served(counted)),
        "figures": figures(counted),
    }
    print(json.dumps(document, indent=2))
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
