"""Damaged and malicious model files: does anything but the child that loads one ever end?

Every file is made from one small valid model (tests/harness/hostile_gguf.py), scanned
(shoal/gguf_facts.py), and if the scan lets it pass loaded and computed with, in a child
process of its own that is forked from a process with llama.cpp in it. Templates of the
files that carry one are compiled and rendered by the engine's template process. A sample,
and every file that killed its child, then goes through real engine processes under the
agent's own supervision (agent/rpc/engine_host.py), in one process that has to live.

    python -m bench.hostile_files --files 10000 --engines 60
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from agent.engine.template import ChatTemplate, TemplateError, TemplateSource
from agent.rpc.engine_host import EngineHost
from agent.rpc.engine_process import EngineSpec, engine_command
from bench.machine import machine
from shoal.errors import ShoalError
from shoal.v1 import engine_pb2
from shoal.v1 import inference_pb2 as pb
from tests.harness.hostile_gguf import HOSTILE_TEMPLATES, Hostile, hostile_files
from tests.harness.hostile_trial import LIMIT_S, Trial, Zygote
from tests.harness.tiny_llama_model import write_tiny_llama_model

RESULTS = Path(__file__).parent / "results" / "hostile_files.json"
_ENDED = (engine_pb2.MODEL_STATE_READY, engine_pb2.MODEL_STATE_FAILED)
_ENGINE_LIMIT_S = 120.0
_AT_ONCE = 2


class _Listener:
    """Waits for an engine's end or readiness."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[engine_pb2.ModelReport] = (
            asyncio.get_running_loop().create_future()
        )

    def engine_frame(self, model: str, frame: pb.InferenceFrame) -> None:
        pass

    def engine_changed(self, report: engine_pb2.ModelReport) -> None:
        if report.state in _ENDED and not self.ended.done():
            self.ended.set_result(report)

    def engine_lost_requests(self, model: str, message: str) -> None:
        pass


async def in_engine(path: Path, folder: Path, number: int) -> dict[str, Any]:
    """What the agent's supervision makes of the file."""
    listener = _Listener()
    spec = EngineSpec("hostile", path, folder / f"e{number}.sock", slots=1, context_tokens=512)
    host = EngineHost(spec, engine_command, listener)
    began_s = time.monotonic()
    host.start()
    try:
        report = await asyncio.wait_for(listener.ended, _ENGINE_LIMIT_S)
        state = engine_pb2.ModelState.Name(report.state).removeprefix("MODEL_STATE_")
        words = report.failure
    except TimeoutError:
        state, words = "HUNG", ""
    seconds = time.monotonic() - began_s
    await host.stop()
    return {"state": state, "words": words, "seconds": seconds}


async def in_template_process(template: str, mark: Path) -> tuple[str, float]:
    """How compiling and rendering ends, in words, and after how long."""
    chat = ChatTemplate(TemplateSource(template.replace("{mark}", str(mark))))
    began_s = time.monotonic()
    try:
        await chat.start()
        await chat.render([{"role": "user", "content": "{{ 7 * 7 }}"}])
        words = "rendered"
    except TemplateError as error:
        words = f"does not compile: {error}"[:200]
    except ShoalError as error:
        words = f"refused: {error.message}"[:200]
    finally:
        await chat.close()
    return words, time.monotonic() - began_s


def try_all(folder: Path, count: int, seed: int) -> tuple[dict[str, Any], list[Hostile]]:
    """Every file through scan and child; the counts, and those worth a real engine."""
    valid = write_tiny_llama_model(folder / "Valid.F32.gguf").read_bytes()
    path = folder / "Hostile.F32.gguf"
    zygote = Zygote()
    stages: dict[str, Counter[str]] = defaultdict(Counter)
    words: Counter[str] = Counter()
    slowest = Trial("", "", 0.0)
    killers: list[Hostile] = []
    passed: list[Hostile] = []
    for number, hostile in enumerate(hostile_files(valid, count, seed)):
        path.write_bytes(hostile.content)
        trial = zygote.try_file(path)
        stages[hostile.family][trial.stage] += 1
        if trial.stage == "scan":
            words[trial.words] += 1
        slowest = max(slowest, trial, key=lambda each: each.seconds)
        if trial.stage in ("crashed", "timeout"):
            killers.append(hostile)
            words[trial.words] += 1
        elif trial.stage != "scan":
            passed.append(hostile)
        if number % 1000 == 999:
            print(f"{number + 1} files", file=sys.stderr, flush=True)
    totals: Counter[str] = Counter()
    for each in stages.values():
        totals.update(each)
    counts = {
        "files": count,
        "by_stage": dict(totals),
        "by_family": {family: dict(each) for family, each in sorted(stages.items())},
        "scan_faults_and_signals": dict(words.most_common()),
        "slowest_s": round(slowest.seconds, 2),
        "over_5_s": int(slowest.seconds > LIMIT_S),
    }
    random.Random(seed).shuffle(passed)
    random.Random(seed).shuffle(killers)
    return counts, [*killers, *passed]


async def try_templates(folder: Path) -> dict[str, Any]:
    """All hostile templates; none may leave a mark on the disk."""
    mark = folder / "escaped"
    ends = [await in_template_process(each, mark) for each in HOSTILE_TEMPLATES]
    kinds = Counter(words.partition(":")[0] for words, _ in ends)
    return {
        "templates": len(ends),
        "ends": dict(kinds),
        "slowest_s": round(max(seconds for _, seconds in ends), 2),
        "escaped": mark.exists(),
    }


async def try_engines(folder: Path, files: list[Hostile]) -> dict[str, Any]:
    """These files through supervised engine processes."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int, hostile: Hostile) -> dict[str, Any]:
        async with gate:
            path = folder / f"Engine-{number}.F32.gguf"
            path.write_bytes(hostile.content)
            ended = await in_engine(path, folder, number)
            path.unlink()
            return ended

    ends = await asyncio.gather(*(one(n, each) for n, each in enumerate(files)))
    failed = [end for end in ends if end["state"] == "FAILED"]
    return {
        "files": len(ends),
        "states": dict(Counter(end["state"] for end in ends)),
        "without_words": sum(not end["words"] for end in failed),
        "slowest_s": round(max(end["seconds"] for end in ends), 1),
        "over_5_s": sum(end["seconds"] > LIMIT_S for end in ends),
        "examples": sorted({end["words"] for end in failed})[:12],
    }


def main() -> int:
    """Run and write bench/results/hostile_files.json; 1 when something got out of its child."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--engines", type=int, default=60, help="files for real engines")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-hf-") as name:
        folder = Path(name)
        counts, worth = try_all(folder, options.files, options.seed)
        templates = asyncio.run(try_templates(folder))
        engines = asyncio.run(try_engines(folder, worth[: options.engines]))
    document = {
        "machine": machine(),
        "seed": options.seed,
        "children": counts,
        "templates": templates,
        "engines": engines,
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document, indent=1))
    good = not templates["escaped"] and not engines["without_words"]
    return 0 if good and "HUNG" not in engines["states"] else 1


if __name__ == "__main__":
    sys.exit(main())
