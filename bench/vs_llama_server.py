"""shoal and llama-server on the same file, threads and slots, asked in turn.

    python -m bench.vs_llama_server --llama-server PATH --model FILE [--rounds 5]

Both run at the same time, and one of them is asked at a time: a machine's speed may change
by half within minutes, which two runs one after the other would take for a difference
between the systems. In each round each workload is asked of both, the order alternating,
with prompts that neither has seen. The ratio is shoal / llama-server in one round; quoted are
its median over the rounds and its quartiles. What the idle fleet takes from llama-server's
turns is reported as a share of a core. `bench/build_llama_server.py` builds the binary from
the llama.cpp that the llama-cpp-python source release carries.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.load import Target, closed_loop
from bench.machine import machine
from bench.prompts import long_prompts, shared_prefix_prompts, short_prompts
from bench.servers import llama_server, shoal_fleet

FILE = Path(__file__).parent / "results" / "vs_llama_server.json"
FIGURES = ("tokens_per_s", "ttft_p50_ms", "tpot_p50_ms")
SLOTS = 8
_WARM_UP_TOKENS = 16
_IDLE_S = 10.0
Chats = list[list[dict[str, str]]]
Summaries = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Workload:
    """Clients at once, tokens of each answer, and prompts of a seed.

    `num_untimed` prompts are sent first; the others are timed.
    """

    clients: int
    max_tokens: int
    prompts: Callable[[int], Chats]
    num_untimed: int = 0


WORKLOADS = {
    "single": Workload(1, 128, lambda seed: short_prompts(3, seed)),
    "short8": Workload(8, 64, lambda seed: short_prompts(24, seed)),
    "distinct8": Workload(8, 64, lambda seed: long_prompts(16, seed=seed)),
    "shared8_warm": Workload(8, 64, lambda seed: shared_prefix_prompts(32, seed=seed), 8),
    "shared8_cold": Workload(8, 64, lambda seed: shared_prefix_prompts(16, seed=seed)),
}


def measure(target: Target, load: Workload, seed: int) -> dict[str, float]:
    """One workload asked of one endpoint, with the prompts of this seed."""
    prompts = load.prompts(seed)
    untimed, timed = prompts[: load.num_untimed], prompts[load.num_untimed :]
    if untimed:
        asyncio.run(closed_loop(target, untimed, load.clients, _WARM_UP_TOKENS))
    return asyncio.run(closed_loop(target, timed, load.clients, load.max_tokens)).summary()


def compare(systems: dict[str, Target], names: list[str], num_rounds: int) -> list[Summaries]:
    """For each round the summaries by `workload/system`."""
    for target in systems.values():
        asyncio.run(closed_loop(target, short_prompts(8, 99), 8, _WARM_UP_TOKENS))
    rounds = []
    for number in range(num_rounds):
        results: Summaries = {}
        for place, name in enumerate(names):
            turns = list(systems.items())
            for system, target in turns if (number + place) % 2 else reversed(turns):
                seed = 1000 * (place + 1) + number
                results[f"{name}/{system}"] = measure(target, WORKLOADS[name], seed)
            print(number + 1, name, _ratios(results, name), file=sys.stderr)
        rounds.append(results)
    return rounds


def _ratios(results: Summaries, name: str) -> dict[str, float]:
    ours, theirs = results[f"{name}/shoal"], results[f"{name}/llama_server"]
    return {figure: round(ours[figure] / theirs[figure], 3) for figure in FIGURES}


def table(rounds: list[Summaries], names: list[str]) -> dict[str, dict[str, object]]:
    """For each workload and figure both medians, and the ratio's median and quartiles."""
    rows: dict[str, dict[str, object]] = {}
    for name in names:
        rows[name] = {}
        for figure in FIGURES:
            of = {
                system: statistics.median(results[f"{name}/{system}"][figure] for results in rounds)
                for system in ("shoal", "llama_server")
            }
            ratios = sorted(_ratios(results, name)[figure] for results in rounds)
            low, middle, high = (
                statistics.quantiles(ratios, n=4, method="inclusive")
                if len(ratios) > 1
                else ratios * 3
            )
            rows[name][figure] = {key: round(value, 2) for key, value in of.items()} | {
                "ratio": round(middle, 3), "quartiles": [round(low, 3), round(high, 3)],
            }  # fmt: skip
    return rows


def idle_share_of_a_core(home: Path) -> float:
    """CPU that the processes of the fleet in `home` take while nobody asks it anything."""
    supervisor = json.loads((home / "run" / "up.json").read_text())["supervisor"]["pid"]
    fleet = psutil.Process(supervisor).children(recursive=True)
    before = {one: sum(one.cpu_times()[:2]) for one in fleet}
    time.sleep(_IDLE_S)
    return sum(sum(one.cpu_times()[:2]) - before[one] for one in fleet) / _IDLE_S


def main() -> None:
    """Parse arguments, run the rounds, write bench/results/vs_llama_server.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder,
        shoal_fleet(
            options.model, "--slots", str(SLOTS), "--context", str(options.context),
            home=Path(folder),
        ) as ours,
        llama_server(
            options.llama_server, options.model, slots=SLOTS, context=options.context
        ) as theirs,
    ):  # fmt: skip
        systems = {"shoal": ours, "llama_server": theirs}
        rounds = compare(systems, options.workloads, options.rounds)
        idle = idle_share_of_a_core(Path(folder))
    report = {
        "machine": machine(), "model": options.model.name, "slots": SLOTS,
        "context": options.context, "idle_fleet_cores": round(idle, 3),
        "table": table(rounds, options.workloads), "rounds": rounds,
    }  # fmt: skip
    FILE.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report["table"], indent=1))


if __name__ == "__main__":
    main()
