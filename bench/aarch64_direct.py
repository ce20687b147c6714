"""What an installed engine computes without agent and fleet: run on the device, prints JSON.

    python aarch64_direct.py MODEL [--quick | --q8_0] < prompts.json    # chat messages' texts

`--quick` does not measure invariance; `--q8_0` measures it with a KV cache of that type.

Uses only what the device's installation has.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import llama_cpp.llama_cpp as llama

from agent.config import BLOCK_TOKENS
from agent.engine.request import SamplingParams
from agent.engine.runner import DecodeItem
from agent.llama.context import ContextShape, LlamaRunner
from agent.llama.library import open_library
from agent.llama.measure import Probe, find_decode_alone_from, is_cut_invariant
from agent.llama.model import Model

MAX_TOKENS = 16
CHATML = "<|im_start|>{role}\n{text}<|im_end|>\n"
# The default model's own template puts this before a conversation without a system message.
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def main() -> None:
    """Measure invariance, then answer each prompt greedily."""
    model = Model(Path(sys.argv[1]), open_library())
    kv_type = "q8_0" if "--q8_0" in sys.argv else "f16"
    runner = LlamaRunner(model, ContextShape(2, 320, os.cpu_count() or 1, kv_type))
    report: dict[str, object] = {}
    began = time.monotonic()
    if "--quick" not in sys.argv:
        probe = Probe(runner)
        report["decode_alone_from"] = find_decode_alone_from(probe)
        report["cut_invariant"] = is_cut_invariant(probe)
        probe.close()
        report["invariance_s"] = round(time.monotonic() - began, 1)
    began = time.monotonic()
    answers = [_answer(runner, model, prompt) for prompt in json.load(sys.stdin)]
    report["answers"] = answers
    report["answers_s"] = round(time.monotonic() - began, 1)
    report["system"] = llama.llama_print_system_info().decode()
    print(json.dumps(report))


def _answer(runner: LlamaRunner, model: Model, prompt: str) -> str:
    """Greedy, in the cuts that the engine makes; up to an end token or MAX_TOKENS."""
    text = "".join(
        CHATML.format(role=role, text=words)
        for role, words in (("system", SYSTEM), ("user", prompt))
    )
    text += "<|im_start|>assistant\n"
    tokens = model.vocab.tokenize(text, add_special=False, parse_special=True)
    runner.start(0, SamplingParams(temperature=0.0), tokens)
    sampled = None
    for start in range(0, len(tokens), BLOCK_TOKENS):
        chunk = tokens[start : start + BLOCK_TOKENS]
        sampled = runner.prefill(0, chunk, start, want_token=start + len(chunk) == len(tokens))
    pieces: list[bytes] = []
    position = len(tokens)
    while sampled is not None and len(pieces) < MAX_TOKENS:
        if runner.is_end(sampled.token):
            break
        pieces.append(runner.piece(sampled.token))
        if len(pieces) < MAX_TOKENS:
            sampled = runner.decode([DecodeItem(0, position, sampled.token)])[0]
            position += 1
    runner.clear(0)
    return b"".join(pieces).decode("utf-8", "replace")


if __name__ == "__main__":
    main()
