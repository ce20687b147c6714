"""Whether one tenant can tell from answers or times that another has asked the same.

    python -m bench.kv_tenants --model FILE [--samples 200]

Again and again one tenant asks a prompt, and then another asks, in random order, the
same prompt and one that nobody has asked. Each must report 0 cached tokens for the
other's, and its times to first token for both kinds must not differ: two-sided
Mann-Whitney and Kolmogorov-Smirnov tests, p > 0.05 each. All times are a client's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import aiohttp

from bench.load import Target, ask
from bench.machine import machine
from bench.prompts import words
from bench.servers import SHOAL, fleet_environment, shoal_fleet

RESULTS = Path(__file__).parent / "results"
# More than a block of tokens: a whole one and a partial one.
NUM_WORDS = 160


def main() -> None:
    """Ask, test, write bench/results/kv_tenants.json; fails when the tenants can tell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=200, help="of both kinds together")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        home = Path(folder)
        with shoal_fleet(options.model, "--slots", "2", "--context", "512", home=home) as target:
            first, second = (_of_tenant(target, home, name) for name in ("first", "second"))
            times, own = asyncio.run(sample(first, second, options.samples // 2))
    same, fresh = times["same"], times["fresh"]
    p_values = {
        "mann_whitney": round(mann_whitney_p(same, fresh), 4),
        "kolmogorov_smirnov": round(kolmogorov_smirnov_p(same, fresh), 4),
    }
    report = {
        "machine": machine(), "model": options.model.name, "samples": len(same) + len(fresh),
        "cached_tokens_of_anothers_prompt": 0, "p": p_values,
        "median_ttft_ms": {
            "prompt_of_another_tenant": round(statistics.median(same), 2),
            "prompt_of_nobody": round(statistics.median(fresh), 2),
            "own_prompt_again": round(statistics.median(own), 2),
        },
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "kv_tenants.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    if min(p_values.values()) <= 0.05:
        raise SystemExit("the times differ")


async def sample(
    first: Target, second: Target, rounds: int
) -> tuple[dict[str, list[float]], list[float]]:
    """(times of the second tenant by kind, times of its own prompts asked again) in ms.

    Raises RuntimeError when it was given the other's KV, or not its own.
    """
    rng = random.Random(9)
    times: dict[str, list[float]] = {"same": [], "fresh": []}
    own: list[float] = []
    async with aiohttp.ClientSession() as session:
        for target in (first, second) * 3:  # connections, pages, kernels
            await ask(session, target, _chat(rng), 1)
        for number in range(rounds):
            shared = _chat(rng)
            await ask(session, first, shared, 1)
            kinds = [("same", shared), ("fresh", _chat(rng))]
            rng.shuffle(kinds)
            for kind, chat in kinds:
                got, _ = await ask(session, second, chat, 1)
                if got.cached_tokens:
                    raise RuntimeError(f"{kind}: {got.cached_tokens} cached tokens")
                times[kind].append(got.ttft_ms)
            if number % 10 == 0:
                got, _ = await ask(session, second, shared, 1)
                if got.cached_tokens < 128:
                    raise RuntimeError(f"own prompt again: {got.cached_tokens} cached tokens")
                own.append(got.ttft_ms)
    return times, own


def mann_whitney_p(one: list[float], other: list[float]) -> float:
    """Two-sided p by the normal approximation, ties at their mean rank."""
    values = sorted([*one, *other])
    ranks = {v: values.index(v) + (values.count(v) + 1) / 2 for v in set(values)}
    n, m = len(one), len(other)
    u = sum(ranks[v] for v in one) - n * (n + 1) / 2
    ties = sum(c**3 - c for c in (values.count(v) for v in set(values)))
    variance = n * m / 12 * ((n + m + 1) - ties / ((n + m) * (n + m - 1)))
    return float(math.erfc(abs(u - n * m / 2) / math.sqrt(2 * variance)))


def kolmogorov_smirnov_p(one: list[float], other: list[float]) -> float:
    """Two-sample p by Kolmogorov's asymptotic distribution, with Stephens' correction."""
    n, m = len(one), len(other)
    gap = max(
        abs(sum(v <= x for v in one) / n - sum(v <= x for v in other) / m)
        for x in (*one, *other)
    )  # fmt: skip
    size = math.sqrt(n * m / (n + m))
    x = (size + 0.12 + 0.11 / size) * gap
    terms = (2 * (-1) ** (k - 1) * math.exp(-2 * k * k * x * x) for k in range(1, 101))
    return min(1.0, max(0.0, sum(terms)))


def _chat(rng: random.Random) -> list[dict[str, str]]:
    """A system message of its own: the template's default one is in every prompt of a tenant."""
    return [
        {"role": "system", "content": words(rng, NUM_WORDS // 2)},
        {"role": "user", "content": words(rng, NUM_WORDS // 2)},
    ]


def _of_tenant(target: Target, home: Path, tenant: str) -> Target:
    command = [str(SHOAL), "keys", "create", "--tenant", tenant, "--json"]
    made = json.loads(subprocess.check_output(command, env=fleet_environment(home)))
    return replace(target, key=made["key"])


if __name__ == "__main__":
    main()
