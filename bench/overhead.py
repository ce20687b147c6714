"""What the whole system adds over calling the engine's socket directly.

    python -m bench.overhead --model FILE [--rounds 3] [--apart]

The same chats go to an engine child process over its unix socket and to a fleet
of one agent over HTTP, turn by turn. Reported: the median time to first token
with one client, and the time per output token with eight. All share the machine's
cores; with --apart the device (agent and engine, one thread) has the first core and
orchestrator and clients the last, as on two machines, so that what the system does
takes no time from the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc

from bench.load import LoadResult, Sample, Target, closed_loop
from bench.machine import machine
from bench.pair import pair
from bench.prompts import short_prompts
from bench.servers import shoal_fleet
from shoal.v1 import engine_pb2, engine_pb2_grpc, inference_pb2, inference_pb2_grpc
from shoal.wire import CHANNEL_OPTIONS

RESULTS = Path(__file__).parent / "results"
MAX_TOKENS = 64


@contextlib.contextmanager
def engine(model: Path, cores: set[int]) -> Iterator[str]:
    """Run an engine child process, a thread on each of the cores; yields its gRPC address."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        socket = f"{folder}/engine.sock"
        process = subprocess.Popen(
            [sys.executable, "-m", "agent.llama.serve", "--socket", socket, "--model", model,
             "--name", "bench", "--slots", "8", "--context", "2048",
             "--threads", str(len(cores))],
            stdout=sys.stderr,
        )  # fmt: skip
        os.sched_setaffinity(process.pid, cores)
        try:
            with grpc.insecure_channel(f"unix:{socket}") as channel:
                control = engine_pb2_grpc.EngineControlStub(channel)
                while (
                    control.Describe(
                        engine_pb2.DescribeRequest(), wait_for_ready=True, timeout=120
                    ).state
                    != engine_pb2.MODEL_STATE_READY
                ):
                    time.sleep(0.1)
            yield f"unix:{socket}"
        finally:
            process.terminate()
            process.wait(30)


async def engine_loop(
    address: str, prompts: list[list[dict[str, str]]], num_clients: int
) -> LoadResult:
    """The closed loop of bench.load, on one Inference session of the engine."""
    result = LoadResult()
    inbox: dict[str, asyncio.Queue[inference_pb2.SequenceUpdate]] = {}
    outbox: asyncio.Queue[inference_pb2.InferenceCommand | None] = asyncio.Queue()

    async def commands() -> AsyncIterator[inference_pb2.InferenceCommand]:
        while (command := await outbox.get()) is not None:
            yield command

    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        session = inference_pb2_grpc.InferenceStub(channel).Session(commands())

        async def read() -> None:
            async for frame in session:
                for update in frame.updates:
                    inbox[update.request_id].put_nowait(update)

        reader = asyncio.create_task(read())
        todo = iter(enumerate(prompts))

        async def client() -> None:
            for number, messages in todo:
                request_id = f"bench-{number}"
                inbox[request_id] = asyncio.Queue()
                started = time.perf_counter()
                outbox.put_nowait(_submit(request_id, messages))
                first = 0.0
                while True:
                    update = await inbox[request_id].get()
                    if update.delta.tokens and not first:
                        first = time.perf_counter()
                    if update.HasField("failed"):
                        raise RuntimeError(update.failed.message)
                    if update.HasField("finished"):
                        break
                ended = time.perf_counter()
                usage = update.finished.usage
                result.samples.append(
                    Sample(
                        ttft_ms=(first - started) * 1e3,
                        total_ms=(ended - started) * 1e3,
                        num_tokens=usage.completion_tokens,
                        prompt_tokens=usage.prompt_tokens,
                        cached_tokens=usage.cached_tokens,
                    )
                )

        started = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(num_clients)))
        result.wall_s = time.perf_counter() - started
        outbox.put_nowait(None)
        await reader
    return result


def _submit(request_id: str, messages: list[dict[str, str]]) -> inference_pb2.InferenceCommand:
    request = inference_pb2.GenerateRequest(
        request_id=request_id,
        model="bench",
        chat=inference_pb2.ChatPrompt(messages=[inference_pb2.ChatMessage(**m) for m in messages]),
        sampling=inference_pb2.Sampling(temperature=0.0),
        max_tokens=MAX_TOKENS,
        ignore_eos=True,
    )
    return inference_pb2.InferenceCommand(submit=request)


@contextlib.contextmanager
def fleet(model: Path, apart: bool) -> Iterator[Target]:
    """Run the whole system; with `apart` its one device has the first core for itself."""
    if apart:
        with pair(model, slots=8, names=("device",)) as running:
            yield running.target
    else:
        with shoal_fleet(model, "--slots", "8", "--context", "2048") as target:
            yield target


def main() -> None:
    """Parse arguments, run the rounds, write bench/results/overhead.json or overhead_apart.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--apart", action="store_true", help="device and orchestrator on two cores")
    options = parser.parse_args()
    cores = os.sched_getaffinity(0)
    if options.apart and len(cores) < 2:
        parser.error("--apart needs two CPUs")
    device_cores = {min(cores)} if options.apart else cores
    rounds = []
    for number in range(options.rounds):
        one, eight = short_prompts(16, 100 + number), short_prompts(32, 200 + number)
        row: dict[str, dict[str, float]] = {}
        with engine(options.model, device_cores) as address:
            if options.apart:
                # Inherited by what is started from here on; a device's core is set for itself.
                os.sched_setaffinity(0, {max(cores)})
            asyncio.run(engine_loop(address, short_prompts(8, 99), 8))
            row["engine_1"] = asyncio.run(engine_loop(address, one, 1)).summary()
            row["engine_8"] = asyncio.run(engine_loop(address, eight, 8)).summary()
        with fleet(options.model, options.apart) as target:
            asyncio.run(closed_loop(target, short_prompts(8, 99), 8, MAX_TOKENS))
            row["system_1"] = asyncio.run(closed_loop(target, one, 1, MAX_TOKENS)).summary()
            row["system_8"] = asyncio.run(closed_loop(target, eight, 8, MAX_TOKENS)).summary()
        print(row, file=sys.stderr)
        rounds.append(row)
    added = {
        "ttft_added_ms_1_client": _added(rounds, "ttft_p50_ms", "1"),
        "tpot_added_ms_1_client": _added(rounds, "tpot_p50_ms", "1"),
        "tpot_added_ms_8_clients": _added(rounds, "tpot_p50_ms", "8"),
    }
    report = {
        "machine": machine(), "model": options.model.name, "added": added, "rounds": rounds,
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    name = "overhead_apart.json" if options.apart else "overhead.json"
    (RESULTS / name).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(added, indent=1))


def _added(rounds: list[dict[str, dict[str, float]]], figure: str, clients: str) -> float:
    return round(
        statistics.median(
            row[f"system_{clients}"][figure] - row[f"engine_{clients}"][figure] for row in rounds
        ),
        2,
    )


if __name__ == "__main__":
    main()
