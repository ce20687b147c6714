"""shoal and llama-server on the same file, threads and slots, turn by turn.

    python -m bench.vs_llama_server --llama-server PATH [--model FILE] [--rounds 3]

Each round runs one system alone, then the other alone, with the same prompts;
the figures are medians over rounds, and the ratio is shoal ÷ llama-server.
`bench/build_llama_server.py` builds the binary from the llama.cpp that the
llama-cpp-python source release carries.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.load import LoadResult, Target, closed_loop
from bench.machine import machine
from bench.prompts import long_prompts, shared_prefix_prompts, short_prompts
from bench.servers import llama_server, shoal_fleet

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts and how many clients send them; `warm_up` is sent first, untimed."""

    clients: int
    max_tokens: int
    prompts: Callable[[], list[list[dict[str, str]]]]
    warm_up: Callable[[], list[list[dict[str, str]]]]


WORKLOADS = {
    "single": Workload(1, 128, lambda: short_prompts(4, 11), lambda: short_prompts(1, 12)),
    "short8": Workload(8, 64, lambda: short_prompts(48, 13), lambda: short_prompts(8, 14)),
    "distinct8": Workload(8, 64, lambda: long_prompts(24, seed=15), lambda: short_prompts(8, 14)),
    "shared8_warm": Workload(
        8, 64, lambda: shared_prefix_prompts(40, seed=16)[8:],
        lambda: shared_prefix_prompts(40, seed=16)[:8],
    ),
    "shared8_cold": Workload(
        8, 64, lambda: shared_prefix_prompts(16, seed=17), lambda: short_prompts(8, 14)
    ),
}  # fmt: skip


def measure(target: Target, names: list[str]) -> dict[str, LoadResult]:
    """Run the named workloads in order against one endpoint."""
    results = {}
    for name in names:
        load = WORKLOADS[name]
        asyncio.run(closed_loop(target, load.warm_up(), load.clients, 16))
        results[name] = asyncio.run(
            closed_loop(target, load.prompts(), load.clients, load.max_tokens)
        )
        print(f"  {name}: {results[name].summary()}", file=sys.stderr)
    return results


def main() -> None:
    """Parse arguments, run the rounds, write bench/results/vs_llama_server.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    options = parser.parse_args()

    rounds: list[dict[str, dict[str, dict[str, float]]]] = []
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        pair: dict[str, dict[str, dict[str, float]]] = {}
        with llama_server(
            options.llama_server, options.model, slots=8, context=options.context
        ) as target:
            pair["llama_server"] = _summaries(measure(target, options.workloads))
        with shoal_fleet(
            options.model, "--slots", "8", "--context", str(options.context)
        ) as target:
            pair["shoal"] = _summaries(measure(target, options.workloads))
        rounds.append(pair)

    table = {}
    for name in options.workloads:
        row: dict[str, float] = {}
        for figure in ("tokens_per_s", "ttft_p50_ms", "tpot_p50_ms"):
            ours = statistics.median(r["shoal"][name][figure] for r in rounds)
            theirs = statistics.median(r["llama_server"][name][figure] for r in rounds)
            row |= {
                f"shoal_{figure}": ours, f"llama_server_{figure}": theirs,
                f"ratio_{figure}": round(ours / theirs, 3),
            }  # fmt: skip
        table[name] = row
    report = {
        "machine": machine(), "model": options.model.name, "slots": 8,
        "context": options.context, "table": table, "rounds": rounds,
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "vs_llama_server.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(table, indent=1))


def _summaries(results: dict[str, LoadResult]) -> dict[str, dict[str, float]]:
    return {name: result.summary() for name, result in results.items()}


if __name__ == "__main__":
    main()
