"""What a row costs at a position: this build's attention and another build of llama.cpp.

    python -m bench.attention --model FILE --other DIR [--rounds 3]

DIR holds the other build's libllama.so and libggml*.so, as `bench.build_llama_server`
leaves them in its `bin`. Turn by turn, each in a process of its own: the time of a
decode step of 1 and of 8 sequences, and of a prefill of 24 and of 128 rows, after
prefixes of growing length. Also reported: flat generation, a step after 1,024 tokens
÷ one after 128.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from agent.config import BLOCK_TOKENS, bound_spinning
from bench.machine import machine

RESULTS = Path(__file__).parent / "results"
PREFIXES = (128, 1024, 2048)
STEPS = 12


def measure(model: Path) -> dict[str, float]:
    """Median times in ms, by case; loads the library that the environment names."""
    bound_spinning()
    # Late: the library is loaded with the module.
    from agent.engine.request import SamplingParams
    from agent.engine.runner import DecodeItem
    from agent.llama.context import ContextShape, LlamaRunner
    from agent.llama.library import open_library
    from agent.llama.measure import probe_tokens
    from agent.llama.model import Model

    runner = LlamaRunner(
        Model(model, open_library()), ContextShape(8, PREFIXES[-1] + 256, os.cpu_count() or 1)
    )
    tokens = probe_tokens(runner, PREFIXES[-1] + BLOCK_TOKENS)
    for slot in range(8):
        runner.start(slot, SamplingParams(temperature=0.0), ())
    result = {}
    done = 0
    for prefix in PREFIXES:
        while done < prefix:
            runner.prefill(0, tokens[done : done + BLOCK_TOKENS], done, want_token=False)
            done += BLOCK_TOKENS
        state = bytes(runner.state_get(0))
        for slot in range(1, 8):
            runner.clear(slot)
            runner.start(slot, SamplingParams(temperature=0.0), ())
            runner.state_set(slot, state)

        def decode(count: int, at: int = prefix) -> None:
            runner.compute_decode([DecodeItem(slot, at, 31) for slot in range(count)])
            for slot in range(count):
                runner.truncate(slot, at)

        def prefill(rows: int, at: int = prefix) -> None:
            runner.prefill(0, tokens[:rows], at, want_token=True)
            runner.truncate(0, at)

        for count in (1, 8):
            result[f"decode_{count}_at_{prefix}"] = _median_ms(partial(decode, count))
        for rows in (24, 128):
            result[f"prefill_{rows}_at_{prefix}"] = _median_ms(partial(prefill, rows))
    return result


def _median_ms(run: Callable[[], None]) -> float:
    times = []
    for _ in range(STEPS):
        began_s = time.perf_counter()
        run()
        times.append((time.perf_counter() - began_s) * 1e3)
    return statistics.median(times[1:])


def main() -> None:
    """Parse arguments, run the rounds, write bench/results/attention.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.model)))
        return
    builds: dict[str, dict[str, str]] = {"shoal": {}}
    if options.other:
        builds["other"] = {"LLAMA_CPP_LIB_PATH": str(options.other.resolve())}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in builds}
    for _ in range(options.rounds):
        for name, environment in builds.items():
            command = [sys.executable, "-m", "bench.attention", "--child", "--model", options.model]
            text = subprocess.check_output(command, env={**os.environ, **environment})
            rounds[name].append(json.loads(text.splitlines()[-1]))
    table = {
        name: {case: round(statistics.median(row[case] for row in rows), 2) for case in rows[0]}
        for name, rows in rounds.items()
    }
    flat = {
        name: round(row["decode_1_at_1024"] / row["decode_1_at_128"], 2)
        for name, row in table.items()
    }
    report = {
        "machine": machine(), "model": options.model.name, "unit": "ms",
        "median": table, "flat_generation_1024_by_128": flat,
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "attention.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
