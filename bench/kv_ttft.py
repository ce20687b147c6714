"""Time to first token with a shared prefix: warm, from the shared tier, from disk; against cold.

    python -m bench.kv_ttft --model FILE [--repetitions 5] [--question-tokens 24]

Two devices of one fleet. A prefix of 2,048 tokens and a fresh question are asked on
device A (cold), on A again (its memory), on B (through Redis), and on A after the whole
fleet was restarted (its disk). Each repetition has a prefix of its own. All times are a
client's: from sending the request to the first text at the public port.
Every answer must say that its prefix came from where it should, else the run fails.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import redis

from bench.load import Target
from bench.machine import machine
from bench.servers import shoal_fleet

RESULTS = Path(__file__).parent / "results"
PREFIX_TOKENS = 2048
BLOCK_TOKENS = 128
# Ids of ordinary words in SmolLM2's vocabulary.
TOKEN_RANGE = (1000, 40000)
A, B = "local-1", "local-2"
# Tier that must have given the prefix, and the ratio to cold that is aimed at.
CASES = {"a_warm": ("host", 40.0), "b_redis": ("redis", 20.0), "a_restart_disk": ("disk", 20.0)}
WRITE_LIMIT_S = 30.0


def main() -> None:
    """Parse arguments, run all repetitions, write bench/results/kv_ttft.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--question-tokens", type=int, default=24)
    parser.add_argument("--context", type=int, default=2560)
    options = parser.parse_args()

    rng = random.Random(7)

    def question() -> list[int]:
        return _tokens(rng, options.question_tokens)

    prefixes = [_tokens(rng, PREFIX_TOKENS) for _ in range(options.repetitions)]
    flags = ("--agents", "2", "--slots", "2", "--context", str(options.context))
    times: dict[str, list[float]] = {name: [] for name in ("cold", *CASES)}
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        home = Path(folder)
        with shoal_fleet(options.model, *flags, home=home) as target:
            _warm_up(target, question())
            for number, prefix in enumerate(prefixes, start=1):
                times["cold"].append(_ask(target, A, prefix, question()))
                times["a_warm"].append(_ask(target, A, prefix, question(), "host"))
                _wait_until_written(home, number * PREFIX_TOKENS // BLOCK_TOKENS)
                times["b_redis"].append(_ask(target, B, prefix, question(), "redis"))
        with shoal_fleet(options.model, *flags, home=home) as target:
            _warm_up(target, question())
            for prefix in prefixes:
                times["a_restart_disk"].append(_ask(target, A, prefix, question(), "disk"))

    medians = {name: round(statistics.median(values), 1) for name, values in times.items()}
    ratios = {
        name: {"speed_up": round(medians["cold"] / medians[name], 1), "aim": aim, "tier": tier}
        for name, (tier, aim) in CASES.items()
    }
    report = {
        "machine": machine(), "model": options.model.name, "prefix_tokens": PREFIX_TOKENS,
        "question_tokens": options.question_tokens, "median_ttft_ms": medians,
        "against_cold": ratios,
        "ttft_ms": {name: [round(value, 1) for value in times[name]] for name in times},
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "kv_ttft.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({"median_ttft_ms": medians, "against_cold": ratios}, indent=1))


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(*TOKEN_RANGE) for _ in range(count)]


def _warm_up(target: Target, question: list[int]) -> None:
    """Connections, pages and kernels of both devices; a prompt too short to be cached."""
    for device in (A, B):
        _ask(target, device, [], question)


def _ask(
    target: Target, device: str, prefix: list[int], question: list[int], tier: str = ""
) -> float:
    """Milliseconds to the first text of prefix + question on that device.

    Raises RuntimeError when the prefix did not come from `tier` (empty: was not computed).
    """
    body = {
        "model": target.model,
        "prompt": prefix + question,
        "max_tokens": 4,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "shoal": {"device": device},
    }
    first_s = None
    last: dict[str, Any] = {}
    with _client(target) as client:
        began_s = time.perf_counter()
        with client.stream("POST", "/v1/completions", json=body) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if first_s is None and any(c.get("text") for c in chunk.get("choices", [])):
                    first_s = time.perf_counter()
                last = chunk
    if first_s is None:
        raise RuntimeError(f"{device} answered without text: {last}")
    cached = last["shoal"]["cached_tokens_by_tier"]
    if cached != ({tier: len(prefix)} if tier else {}):
        raise RuntimeError(f"{device}: expected {tier or 'a cold run'}, got {cached}")
    elapsed_ms = 1000 * (first_s - began_s)
    print(f"  {device} {tier or 'cold'}: {elapsed_ms:.0f} ms", file=sys.stderr)
    return elapsed_ms


def _client(target: Target) -> httpx.Client:
    headers = {"Authorization": f"Bearer {target.key}"}
    return httpx.Client(base_url=target.url, headers=headers, timeout=120, trust_env=False)


def _wait_until_written(home: Path, num_blocks: int) -> None:
    """Until the shared tier and A's disk hold what A computed: both are written behind."""
    port = int((home / "redis" / "cache.port").read_text())
    password = (home / "keys" / "cache-admin.key").read_text().strip()
    disk = home / "agents" / A / "kv"
    with redis.Redis(port=port, username="shoal-admin", password=password) as admin:
        _wait(lambda: len(list(admin.scan_iter("shoal:kv:*", count=1000))) >= num_blocks)
    _wait(lambda: len(list(disk.rglob("*.kv"))) >= num_blocks)


def _wait(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WRITE_LIMIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"blocks were not written within {WRITE_LIMIT_S:.0f} s")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
