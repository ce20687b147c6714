"""A slow device whose long prompts a fast one computes: TTFT with and without.

    python -m bench.shared_prefill --model FILE [--prompts 6] [--rounds 1]

Two real agents as in bench.two_agents, one core each; the engine of one runs a fifth of the
time. Requests name the slow device. In turn one is free to use the shared tier, so that the
hub may have its prompt computed by the other device, and one must stay local, so that it may
not: the same otherwise, each with words of its own. The figures that decided are read from
the decision records.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import aiohttp

from bench.load import Sample, ask
from bench.machine import machine
from bench.pair import NAMES, Pair, pair, throttled
from bench.prompts import long_prompts
from bench.servers import SHOAL

RESULTS = Path(__file__).parent / "results"
FAST, SLOW = NAMES
THROTTLE = 5.0
WORDS = 700
TOKENS = 8
# From which the router learns the slowed engine's speed.
NUM_WARM = 4
# A device's measured link comes with its next heartbeat.
HEARTBEATS_S = 5.0


async def measure(running: Pair, num_prompts: int) -> dict[str, list[Sample]]:
    """Samples of requests that may share and of those that may not, in turn."""
    prompts = iter(long_prompts(NUM_WARM + 2 + 2 * num_prompts, WORDS, 31))
    samples: dict[str, list[Sample]] = {"any": [], "local_only": []}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:

        async def one(device: str, privacy: str) -> Sample:
            extension: dict[str, object] = {"device": device, "privacy": privacy}
            return (await ask(session, running.target, next(prompts), TOKENS, extension))[0]

        # Blocks that are stored measure a device's link.
        await one(FAST, "any")
        await one(SLOW, "any")
        for _ in range(NUM_WARM):
            await one(SLOW, "local_only")
        await asyncio.sleep(HEARTBEATS_S)
        for _ in range(num_prompts):
            for privacy, taken in samples.items():
                taken.append(await one(SLOW, privacy))
                print(f"{privacy}: {taken[-1]}", file=sys.stderr, flush=True)
    return samples


def decided(running: Pair, num_newest: int) -> list[dict[str, object]]:
    """What the newest records say of who computes the prompt, oldest first."""
    time.sleep(1.0)  # records are written behind
    listing = json.loads(
        subprocess.check_output(
            [SHOAL, "decisions", "--limit", str(num_newest), "--json"], env=running.env
        )
    )
    rows = [row.get("shared_prefill") for row in listing["decisions"]]
    return [row for row in reversed(rows) if row]


def figures(samples: list[Sample]) -> dict[str, object]:
    """Medians of one kind."""
    return {
        "ttft_p50_ms": round(statistics.median(s.ttft_ms for s in samples), 1),
        "ttfts_ms": [round(s.ttft_ms, 1) for s in samples],
        "prompt_tokens_p50": statistics.median(s.prompt_tokens for s in samples),
        "cached_tokens_p50": statistics.median(s.cached_tokens for s in samples),
    }


def run(model: Path, num_prompts: int) -> dict[str, object]:
    """One fleet's figures."""
    with pair(model, slots=4) as running, throttled(running.engine(SLOW), THROTTLE):
        samples = asyncio.run(measure(running, num_prompts))
        records = decided(running, 2 * num_prompts)
    shared, local = figures(samples["any"]), figures(samples["local_only"])
    ratio = float(str(shared["ttft_p50_ms"])) / float(str(local["ttft_p50_ms"]))
    return {
        "shared": shared, "local": local, "ttft_shared_to_local": round(ratio, 3),
        "decisions": records,
    }  # fmt: skip


def main() -> None:
    """Parse arguments, run, write bench/results/shared_prefill.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=6, help="of each kind")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "shared_prefill.json")
    options = parser.parse_args()
    rounds = [run(options.model.absolute(), options.prompts) for _ in range(options.rounds)]
    report = {
        "machine": machine(), "model": options.model.name, "throttle": THROTTLE, "words": WORDS,
        "rounds": rounds,
    }  # fmt: skip
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(rounds, indent=1))


if __name__ == "__main__":
    main()
