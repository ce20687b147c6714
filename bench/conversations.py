"""Conversations on shoal and on llama-server: one alone, many interleaved, and over a restart.

    python -m bench.conversations --llama-server PATH --model FILE
        [--parts one many restart] [--systems llama_server shoal] [--conversations 32] [--turns 4]

Same file, threads and 8 slots; llama-server's host-memory prompt cache is on (its
default). A conversation opens with a document, and every turn sends all that was said,
the system's own replies included.

one      conversations of --long-turns turns, one after another: TTFT of the turns after
         the first.
many     --conversations of --turns turns: turn 1 of all, then turn 2 of all, by 8 clients:
         the wall time of all answers.
restart  the same, with the system ended and started again half-way (shoal keeps its
         state directory): the wall time of the answers after it, and of all. Neither
         counts the start.

Results of parts and systems that were not run are kept from earlier runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from bench.load import Sample, Target, ask
from bench.machine import machine
from bench.prompts import short_prompts, words
from bench.servers import llama_server, shoal_fleet

FILE = Path(__file__).parent / "results" / "conversations.json"
SLOTS = CLIENTS = 8
CONTEXT = 2048
REPLY_TOKENS = 32
DOCUMENT_WORDS, QUESTION_WORDS = 700, 16
# Conversations of the part `one`: the median of their later turns is quoted.
NUM_ALONE = 3
AIMS = {"one": 1.0, "many": 1.0, "restart": 0.5}


@dataclass(slots=True)
class Conversation:
    """All that was said, and the times of every answer."""

    rng: random.Random
    messages: list[dict[str, str]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    async def turn(self, session: aiohttp.ClientSession, target: Target) -> None:
        """Ask the next question, the first one with the document, and note the reply."""
        question = f"What about {words(self.rng, QUESTION_WORDS)}?"
        if not self.messages:
            question = f"{words(self.rng, DOCUMENT_WORDS)}. {question}"
        self.messages.append({"role": "user", "content": question})
        sample, reply = await ask(session, target, self.messages, REPLY_TOKENS)
        self.messages.append({"role": "assistant", "content": reply})
        self.samples.append(sample)


@dataclass(frozen=True, slots=True)
class Systems:
    """How each of the two is started."""

    model: Path
    binary: Path | None

    def start(self, name: str, home: Path) -> AbstractContextManager[Target]:
        """The named system, alone; shoal's state is in `home`."""
        if name == "shoal":
            flags = ("--slots", str(SLOTS), "--context", str(CONTEXT))
            return shoal_fleet(self.model, *flags, home=home)
        if self.binary is None:
            raise SystemExit("--llama-server: the path of the binary is needed")
        return llama_server(self.binary, self.model, slots=SLOTS, context=CONTEXT)


def main() -> None:
    """Parse arguments, run what was asked for, write bench/results/conversations.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", default=list(AIMS), choices=list(AIMS))
    names = ["llama_server", "shoal"]
    parser.add_argument("--systems", nargs="+", default=names, choices=names)
    parser.add_argument("--conversations", type=int, default=32)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--long-turns", type=int, default=10)
    options = parser.parse_args()
    systems = Systems(options.model, options.llama_server)
    settings = {
        "machine": machine(), "model": options.model.name, "slots": SLOTS, "context": CONTEXT,
        "document_words": DOCUMENT_WORDS, "question_words": QUESTION_WORDS,
        "reply_tokens": REPLY_TOKENS, "conversations": options.conversations,
        "turns": options.turns, "long_turns": options.long_turns,
    }  # fmt: skip
    parts: dict[str, dict[str, dict[str, float]]] = _earlier(settings)
    for part in options.parts:
        for name in options.systems:
            print(f"{part}: {name}", file=sys.stderr)
            with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
                if part == "one":
                    figures = alone(systems, name, Path(folder), options.long_turns)
                else:
                    shape = (options.conversations, options.turns)
                    run = Interleaved(systems, name, Path(folder), shape)
                    figures = run.through() if part == "many" else run.restarted()
            print(f"  {figures}", file=sys.stderr)
            parts.setdefault(part, {})[name] = figures
    report = settings | {"ratios": _ratios(parts), "parts": parts}
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report["ratios"], indent=1))


def alone(systems: Systems, name: str, home: Path, turns: int) -> dict[str, float]:
    """One conversation after another, nobody else there."""

    async def talk(target: Target) -> list[Conversation]:
        async with _session() as session:
            await _warm_up(session, target)
            talks = [Conversation(random.Random(40 + number)) for number in range(NUM_ALONE)]
            for conversation in talks:
                for _ in range(turns):
                    await conversation.turn(session, target)
            return talks

    with systems.start(name, home) as target:
        talks = asyncio.run(talk(target))
    first = [talk.samples[0].ttft_ms for talk in talks]
    later = [sample.ttft_ms for talk in talks for sample in talk.samples[1:]]
    return {
        "first_turn_ttft_p50_ms": round(statistics.median(first), 1),
        "later_turns_ttft_p50_ms": round(statistics.median(later), 1),
        "later_turns_ttft_max_ms": round(max(later), 1),
        "last_prompt_tokens": talks[0].samples[-1].prompt_tokens,
        "last_cached_tokens": talks[0].samples[-1].cached_tokens,
    }


class Interleaved:
    """Many conversations, turn by turn, on one system."""

    def __init__(self, systems: Systems, name: str, home: Path, shape: tuple[int, int]) -> None:
        """`shape`: number of conversations and of turns."""
        self._systems = systems
        self._name = name
        self._home = home
        self._talks = [Conversation(random.Random(100 + number)) for number in range(shape[0])]
        self._num_turns = shape[1]

    def through(self) -> dict[str, float]:
        """All turns without an interruption."""
        with self._start() as target:
            wall_s = asyncio.run(self._ask(target, self._num_turns))
        return {"wall_s": round(wall_s, 2)} | self._figures(1)

    def restarted(self) -> dict[str, float]:
        """The first half of the turns, a restart, the others."""
        before = self._num_turns // 2
        with self._start() as target:
            before_s = asyncio.run(self._ask(target, before))
        with self._start() as target:
            after_s = asyncio.run(self._ask(target, self._num_turns - before))
        return {
            "wall_s": round(before_s + after_s, 2),
            "after_restart_wall_s": round(after_s, 2),
        } | self._figures(before)

    def _start(self) -> AbstractContextManager[Target]:
        return self._systems.start(self._name, self._home)

    async def _ask(self, target: Target, num_turns: int) -> float:
        """Seconds for the next turns of all conversations."""
        done = {id(talk): asyncio.Lock() for talk in self._talks}
        todo: Iterator[Conversation] = iter(self._talks * num_turns)
        async with _session() as session:
            await _warm_up(session, target)

            async def client() -> None:
                for talk in todo:
                    async with done[id(talk)]:  # its turn before this one
                        await talk.turn(session, target)

            began_s = time.perf_counter()
            await asyncio.gather(*(client() for _ in range(CLIENTS)))
            return time.perf_counter() - began_s

    def _figures(self, first: int) -> dict[str, float]:
        """Of all turns from `first` on, counted from 0, and of that one."""
        at_first = [talk.samples[first] for talk in self._talks]
        later = [sample for talk in self._talks for sample in talk.samples[first:]]
        return {
            "ttft_p50_ms": round(statistics.median(s.ttft_ms for s in later), 1),
            "prompt_tokens": sum(s.prompt_tokens for s in later),
            "cached_tokens": sum(s.cached_tokens for s in later),
            "cached_share_of_first": round(
                sum(s.cached_tokens for s in at_first) / sum(s.prompt_tokens for s in at_first), 3
            ),
        }


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),  # as in bench.load
        timeout=aiohttp.ClientTimeout(total=600),
    )


async def _warm_up(session: aiohttp.ClientSession, target: Target) -> None:
    """Connections, pages and kernels."""
    prompts = short_prompts(CLIENTS, seed=14)
    await asyncio.gather(*(ask(session, target, prompt, 8) for prompt in prompts))


def _earlier(settings: dict[str, object]) -> dict[str, dict[str, dict[str, float]]]:
    """Parts of the last run, if that had the same settings."""
    with contextlib.suppress(OSError, ValueError):
        report = json.loads(FILE.read_text())
        if all(report.get(name) == value for name, value in settings.items()):
            parts: dict[str, dict[str, dict[str, float]]] = report["parts"]
            return parts
    return {}


def _ratios(parts: dict[str, dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """shoal divided by llama-server; `ratio` is of the figure that has the aim."""
    figure = {"one": "later_turns_ttft_p50_ms", "many": "wall_s", "restart": "wall_s"}

    def divided(both: dict[str, dict[str, float]], name: str) -> float:
        return round(both["shoal"][name] / both["llama_server"][name], 3)

    ratios = {
        part: {"ratio": divided(both, figure[part]), "aim": AIMS[part]}
        for part, both in parts.items()
        if len(both) == 2
    }
    if "restart" in ratios:
        ratios["restart"]["after_restart"] = divided(parts["restart"], "after_restart_wall_s")
    return ratios


if __name__ == "__main__":
    main()
