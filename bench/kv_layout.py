"""Cells that sequences share, against a KV cache of their own each: decode behind one prefix.

    python -m bench.kv_layout --model FILE [--rounds 5] [--threads 1]

Eight sequences generate 32 tokens behind the same prefix of 1,024 tokens: in the layout
that the engine has (per sequence, the prefix restored into each) and in llama.cpp's
unified one (the prefix's cells held once, `seq_cp`), turn by turn, each in a process of
its own. On one thread its CPU time counts, so that other programs disturb little; on
more the time that passes. The
unified layout is worth offering from 1.25 times the tokens per second on, since its
output depends on what else is in the cache.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from agent.config import BLOCK_TOKENS, bound_spinning
from bench.machine import machine

RESULTS = Path(__file__).parent / "results"
SEQUENCES, PREFIX, STEPS = 8, 1024, 32
WORTH_OFFERING = 1.25


def measure(model: Path, threads: int, *, unified: bool) -> float:
    """Tokens per second of all sequences together."""
    bound_spinning()
    # Late: the library is loaded with the module.
    import llama_cpp.llama_cpp as llama

    from agent.engine.request import SamplingParams
    from agent.engine.runner import DecodeItem
    from agent.llama.context import ContextShape, LlamaRunner
    from agent.llama.library import open_library
    from agent.llama.measure import probe_tokens
    from agent.llama.model import Model

    if unified:
        make_context = llama.llama_init_from_model

        def make_unified(handle: object, params: llama.llama_context_params) -> object:
            params.kv_unified = True
            return make_context(handle, params)

        llama.llama_init_from_model = make_unified
    shape = ContextShape(SEQUENCES, PREFIX + 2 * BLOCK_TOKENS, threads)
    runner = LlamaRunner(Model(model, open_library()), shape)
    tokens = probe_tokens(runner, PREFIX)
    for slot in range(SEQUENCES):
        runner.start(slot, SamplingParams(temperature=0.0), ())
    for done in range(0, PREFIX, BLOCK_TOKENS):
        runner.prefill(0, tokens[done : done + BLOCK_TOKENS], done, want_token=False)
    state = None if unified else bytes(runner.state_get(0))
    memory = llama.llama_get_memory(runner.context)
    for slot in range(1, SEQUENCES):
        if state is None:
            llama.llama_memory_seq_cp(memory, 0, slot, 0, PREFIX)
        else:
            runner.state_set(slot, state)
    items = [DecodeItem(slot, PREFIX, 31 + slot) for slot in range(SEQUENCES)]
    runner.compute_decode(items)  # the first use of buffers
    clock = time.process_time if threads == 1 else time.perf_counter
    began_s = clock()
    for step in range(1, STEPS + 1):
        items = [DecodeItem(slot, PREFIX + step, 31 + slot) for slot in range(SEQUENCES)]
        runner.compute_decode(items)
    return SEQUENCES * STEPS / (clock() - began_s)


def main() -> None:
    """Parse arguments, run the rounds, write bench/results/kv_layout.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--child", choices=("own", "unified"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(
            json.dumps(measure(options.model, options.threads, unified=options.child == "unified"))
        )
        return
    rounds: dict[str, list[float]] = {"own": [], "unified": []}
    for _ in range(options.rounds):
        for layout, speeds in rounds.items():
            command = [sys.executable, "-m", "bench.kv_layout", "--model", str(options.model)]
            command += ["--threads", str(options.threads)]
            text = subprocess.check_output([*command, "--child", layout])
            speeds.append(round(float(text.splitlines()[-1]), 1))
    # Whatever else the machine does, to its caches, only slows a round down.
    best = {layout: max(speeds) for layout, speeds in rounds.items()}
    ratio = best["unified"] / best["own"]
    report = {
        "machine": machine(), "model": options.model.name, "sequences": SEQUENCES,
        "prefix_tokens": PREFIX, "threads": options.threads,
        "tokens_per_s": rounds, "best": best,
        "unified_by_own": round(ratio, 3), "worth_offering_from": WORTH_OFFERING,
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "kv_layout.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
