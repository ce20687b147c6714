"""What the whole system adds over calling the engine's socket directly.

    python -m bench.overhead --model FILE [--pairs 60] [--rounds 8] [--apart]

A fleet of one agent runs; its engine is asked through the whole system over HTTP and
directly on its unix socket, in turn, so that both have the same process, the same caches
and the same weather of the machine. One client: pairs of requests for the same new
prompt, their order alternating, and the median of what the time to first token through
the system has more. Eight clients: loops of 24 prompts in turn, and the median over the
rounds of what the time per output token has more. All share the machine's cores; with
--apart the device (agent and engine, one thread) has the first core and orchestrator and
clients the last, as on two machines, so that what the system does takes no time from the
engine. HTTP clients keep their connections, as OpenAI's do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import aiohttp
import grpc
import psutil

from bench.load import Sample, Target, ask
from bench.machine import machine
from bench.pair import pair
from bench.prompts import short_prompts
from bench.servers import shoal_fleet
from shoal.v1 import inference_pb2, inference_pb2_grpc
from shoal.wire import CHANNEL_OPTIONS

RESULTS = Path(__file__).parent / "results"
MAX_TOKENS = 64
_LOOP_PROMPTS = 24
Chat = list[dict[str, str]]
Ask = Callable[[Chat], Awaitable[Sample]]


@contextlib.asynccontextmanager
async def direct(socket: str) -> AsyncIterator[Ask]:
    """A way to ask the engine on its own socket, over one session as the agent has it."""
    inbox: dict[str, asyncio.Queue[inference_pb2.SequenceUpdate]] = {}
    outbox: asyncio.Queue[inference_pb2.InferenceCommand | None] = asyncio.Queue()

    async def commands() -> AsyncIterator[inference_pb2.InferenceCommand]:
        while (command := await outbox.get()) is not None:
            yield command

    async with grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL_OPTIONS) as channel:
        session = inference_pb2_grpc.InferenceStub(channel).Session(commands())

        async def read() -> None:
            async for frame in session:
                for update in frame.updates:
                    inbox[update.request_id].put_nowait(update)

        async def ask_engine(messages: Chat) -> Sample:
            request_id = f"bench-{len(inbox)}"
            inbox[request_id] = asyncio.Queue()
            started = time.perf_counter()
            outbox.put_nowait(_submit(request_id, messages))
            first = 0.0
            while True:
                update = await inbox[request_id].get()
                if update.delta.text and not first:
                    first = time.perf_counter()
                if update.HasField("failed"):
                    raise RuntimeError(update.failed.message)
                if update.HasField("finished"):
                    break
            ended = time.perf_counter()
            usage = update.finished.usage
            return Sample(
                ttft_ms=(first - started) * 1e3,
                total_ms=(ended - started) * 1e3,
                num_tokens=usage.completion_tokens,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
            )

        reader = asyncio.create_task(read())
        yield ask_engine
        outbox.put_nowait(None)
        await reader


def _submit(request_id: str, messages: Chat) -> inference_pb2.InferenceCommand:
    request = inference_pb2.GenerateRequest(
        request_id=request_id,
        chat=inference_pb2.ChatPrompt(messages=[inference_pb2.ChatMessage(**m) for m in messages]),
        sampling=inference_pb2.Sampling(temperature=0.0),
        max_tokens=MAX_TOKENS,
        ignore_eos=True,
    )
    return inference_pb2.InferenceCommand(submit=request)


@contextlib.asynccontextmanager
async def through(target: Target) -> AsyncIterator[Ask]:
    """A way to ask the whole system over HTTP."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:

        async def ask_system(messages: Chat) -> Sample:
            sample, _ = await ask(session, target, messages, MAX_TOKENS)
            return sample

        yield ask_system


async def pairs(sides: list[Ask], prompts: list[Chat]) -> list[list[Sample]]:
    """Each prompt asked of both sides, one at a time; a list of samples for each side."""
    samples: list[list[Sample]] = [[], []]
    for number, messages in enumerate(prompts):
        for side in (0, 1) if number % 2 else (1, 0):
            samples[side].append(await sides[side](messages))
    return samples


async def loop_of_eight(side: Ask, prompts: list[Chat]) -> dict[str, float]:
    """A closed loop of eight clients; its median times in ms and its tokens a second."""
    todo, samples = iter(prompts), []
    started = time.perf_counter()

    async def client() -> None:
        for messages in todo:
            samples.append(await side(messages))

    await asyncio.gather(*(client() for _ in range(8)))
    tokens = sum(sample.num_tokens for sample in samples)
    return _summary(samples) | {"tokens_per_s": round(tokens / (time.perf_counter() - started), 1)}


def _summary(samples: list[Sample]) -> dict[str, float]:
    return {
        "ttft_p50_ms": round(statistics.median(s.ttft_ms for s in samples), 2),
        "tpot_p50_ms": round(statistics.median(s.tpot_ms for s in samples), 2),
        "prompt_tokens_p50": statistics.median(s.prompt_tokens for s in samples),
        "cached_tokens_p50": statistics.median(s.cached_tokens for s in samples),
    }


async def measure(socket: str, target: Target, options: argparse.Namespace) -> dict[str, object]:
    """Both comparisons on a running fleet and the socket of its engine."""
    async with direct(socket) as engine, through(target) as system:
        for side in (engine, system):
            await loop_of_eight(side, short_prompts(8, 99))
        alone = await pairs([engine, system], short_prompts(options.pairs, 100))
        rounds = []
        for number in range(options.rounds):
            sides = [("engine", engine), ("system", system)]
            prompts = short_prompts(_LOOP_PROMPTS, 200 + number)
            row = {
                name: await loop_of_eight(side, prompts)
                for name, side in (sides if number % 2 else reversed(sides))
            }
            print(row, file=sys.stderr)
            rounds.append(row)
    ttft = [b.ttft_ms - a.ttft_ms for a, b in zip(*alone, strict=True)]
    tpot_1 = [b.tpot_ms - a.tpot_ms for a, b in zip(*alone, strict=True)]
    tpot_8 = [row["system"]["tpot_p50_ms"] - row["engine"]["tpot_p50_ms"] for row in rounds]
    return {
        "added": {
            "ttft_added_ms_1_client": _quartiles(ttft),
            "tpot_added_ms_1_client": _quartiles(tpot_1),
            "tpot_added_ms_8_clients": _quartiles(tpot_8),
        },
        "engine_1": _summary(alone[0]),
        "system_1": _summary(alone[1]),
        "rounds_of_8": rounds,
    }


def _quartiles(differences: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(differences, n=4)
    return {"median": round(middle, 2), "quartile_1": round(low, 2), "quartile_3": round(high, 2)}


@contextlib.contextmanager
def fleet(model: Path, apart: bool) -> Iterator[tuple[str, Target]]:
    """Run the whole system; with `apart` its one device has the first core for itself.

    Yields the socket of its engine and its endpoint.
    """
    if apart:
        # Inherited by what is started from here on; a device's core is set for itself.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        with pair(model, slots=8, names=("device",)) as running:
            yield _socket(Path(running.env["SHOAL_HOME"])), running.target
        return
    with (
        tempfile.TemporaryDirectory(prefix="shoal-bench-") as home,
        shoal_fleet(model, "--slots", "8", "--context", "2048", home=Path(home)) as target,
    ):
        yield _socket(Path(home)), target


def _socket(home: Path) -> str:
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "agent.llama.serve" in line and any(str(home) in part for part in line):
            return str(line[line.index("--socket") + 1])
    raise RuntimeError(f"no engine of the fleet in {home} is running")


def main() -> None:
    """Parse arguments, measure, write bench/results/overhead.json or overhead_apart.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=60, help="requests of one client, each way")
    parser.add_argument("--rounds", type=int, default=8, help="loops of eight clients, each way")
    parser.add_argument("--apart", action="store_true", help="device and orchestrator on two cores")
    options = parser.parse_args()
    if options.apart and len(os.sched_getaffinity(0)) < 2:
        parser.error("--apart needs two CPUs")
    if min(options.pairs, options.rounds) < 2:
        parser.error("--pairs and --rounds: at least 2")
    with fleet(options.model, options.apart) as (socket, target):
        report = asyncio.run(measure(socket, target, options))
    report = {"machine": machine(), "model": options.model.name, **report}
    RESULTS.mkdir(exist_ok=True)
    name = "overhead_apart.json" if options.apart else "overhead.json"
    (RESULTS / name).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report["added"], indent=1))


if __name__ == "__main__":
    main()
