"""One child process a file: scan, load, compute. Whatever it does there, its parent goes on.

The child is forked from this process, which has loaded llama.cpp and started no thread of
it; so ten thousand children take minutes. It does what an engine does with a file
(agent/llama/model.py, context.py), with small memory.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from agent.engine.request import SamplingParams
from agent.engine.runner import DecodeItem, RunnerError
from agent.llama.context import ContextShape, LlamaRunner
from agent.llama.library import EXIT_FATAL, LibraryLog, open_library
from agent.llama.model import Model, ModelUnusableError
from shoal.gguf import GgufError
from shoal.gguf_facts import scan

LIMIT_S = 5.0
_MEMORY_BYTES = 8 << 30
_SHAPE = ContextShape(slots=2, context_tokens=256, threads=1)


@dataclass(frozen=True, slots=True)
class Trial:
    """How one file ended: at which stage, with what words."""

    stage: str  # scan | load | serves | crashed | timeout
    words: str
    seconds: float


class Zygote:
    """Tries files, each in a child of its own."""

    def __init__(self) -> None:
        self._log: LibraryLog = open_library()

    def try_file(self, path: Path, *, scan_first: bool = True) -> Trial:
        """The end of one file."""
        began_s = time.monotonic()
        readable, writable = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.close(readable)
            _child(path, writable, self._log, scan_first=scan_first)
        os.close(writable)
        words = _read(readable, began_s + LIMIT_S + 5.0)
        _, status = os.waitpid(pid, 0)
        seconds = time.monotonic() - began_s
        if os.WIFSIGNALED(status):
            number = signal.Signals(os.WTERMSIG(status))
            stage = "timeout" if number is signal.SIGALRM else "crashed"
            return Trial(stage, f"killed by {number.name}", seconds)
        last = (words.decode(errors="replace").strip().splitlines() or [""])[-1]
        if code := os.waitstatus_to_exitcode(status):
            # llama.cpp's own abort, which the engine's library turns into last words.
            stage = "load" if last and code == EXIT_FATAL else "crashed"
            return Trial(stage, last or f"exit code {code}", seconds)
        said = json.loads(last)
        return Trial(said["stage"], said["words"], seconds)


def _read(descriptor: int, until_s: float) -> bytes:
    parts = []
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, until_s - time.monotonic()))[0]:
            part = pipe.read(65536)
            if not part:
                break
            parts.append(part)
    return b"".join(parts)


def _child(path: Path, pipe: int, log: LibraryLog, *, scan_first: bool) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(pipe, 2)
    stage, words = _outcome(path, log, scan_first=scan_first)
    os.write(pipe, b"\n" + json.dumps({"stage": stage, "words": words}).encode() + b"\n")
    os._exit(0)


def _outcome(path: Path, log: LibraryLog, *, scan_first: bool) -> tuple[str, str]:
    try:
        if scan_first:
            scan(path)
        return "serves", _compute(path, log)
    except GgufError as error:
        return "scan", error.fault
    except (ModelUnusableError, RunnerError) as error:
        return "load", str(error)[:300]
    except Exception as error:  # noqa: BLE001 - the engine process ends with it as its reason
        return "load", f"{type(error).__name__}: {error}"[:300]


def _compute(path: Path, log: LibraryLog) -> str:
    model = Model(path, log)
    runner = LlamaRunner(model, _SHAPE)
    size = max(1, model.vocab.size)
    runner.start(0, SamplingParams(temperature=0.0), ())
    prompt = [number * 7 % size for number in range(1, 40)]
    token = runner.prefill(0, prompt, 0, want_token=True)
    tokens = []
    for position in range(len(prompt), len(prompt) + 4):
        if token is None:
            raise RunnerError("no token was sampled")
        tokens.append(token.token)
        model.vocab.piece(token.token)
        token = runner.decode([DecodeItem(0, position, token.token)])[0]
    _ = (model.architecture, model.quantisation, model.num_parameters, model.kv_bytes_per_token())
    _ = (model.chat_template, model.vocab.bos_text, model.vocab.eos_text)
    return f"{len(tokens)} tokens"
