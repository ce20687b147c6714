"""A real engine process without a model: `python agent_engine.py --socket S ...`.

What it does is in the request's text: `echo WORDS` sends each word as a delta, `pace MS
WORDS` one every MS ms, `hold` never ends, `die` kills the process with SIGKILL, anything
else is echoed. A model file that holds
`broken` makes it exit before it serves; `hang` makes Describe stop answering.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio

from shoal.v1 import engine_pb2, engine_pb2_grpc, inference_pb2_grpc
from shoal.v1 import inference_pb2 as pb


class Engine:
    def __init__(self, options: argparse.Namespace) -> None:
        self.name = options.name
        self.file = options.model
        self.measured = not options.no_measure
        self.cancelled = 0

    async def Describe(self, request: Any, context: Any) -> engine_pb2.ModelReport:
        load = pb.EngineLoad(model=self.name, slots=8, counters={"cancelled": self.cancelled})
        return engine_pb2.ModelReport(
            name=self.name,
            file=self.file.name,
            slots=8,
            num_parameters=1_000_000,
            context_tokens=2048,
            decode_batch_tokens_per_s=[80, 120, 160],
            state=engine_pb2.MODEL_STATE_READY,
            prefill_tokens_per_s=700 * self.measured,
            decode_tokens_per_s=80 * self.measured,
            load=load,
        )

    async def Session(
        self, commands: AsyncIterator[pb.InferenceCommand], context: Any
    ) -> AsyncIterator[pb.InferenceFrame]:
        frames: asyncio.Queue[pb.InferenceFrame | None] = asyncio.Queue()
        reader = asyncio.create_task(self._read(commands, frames))
        try:
            while (frame := await frames.get()) is not None:
                yield frame
        finally:
            reader.cancel()

    async def _read(
        self,
        commands: AsyncIterator[pb.InferenceCommand],
        frames: asyncio.Queue[pb.InferenceFrame | None],
    ) -> None:
        async with asyncio.TaskGroup() as running:
            async for command in commands:
                if command.WhichOneof("command") == "cancel":
                    self.cancelled += 1
                    continue
                request = command.submit
                verb, _, rest = request.text.partition(" ")
                if verb == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                frames.put_nowait(_frame(request.request_id, admitted=pb.Admitted(prompt_tokens=3)))
                if verb == "hold":
                    continue
                words = rest.split() or [verb]
                pace_s = int(words.pop(0)) / 1_000 if verb == "pace" else 0.0
                running.create_task(_say(request.request_id, words, pace_s, frames))
        frames.put_nowait(None)


async def _say(
    request_id: str,
    words: list[str],
    pace_s: float,
    frames: asyncio.Queue[pb.InferenceFrame | None],
) -> None:
    for word in words[:-1]:
        frames.put_nowait(_frame(request_id, delta=pb.Delta(text=word)))
        await asyncio.sleep(pace_s)
    frames.put_nowait(
        _frame(
            request_id,
            delta=pb.Delta(text=words[-1]),
            finished=pb.Finished(usage=pb.Usage(completion_tokens=len(words))),
        )
    )


def _frame(request_id: str, **parts: Any) -> pb.InferenceFrame:
    return pb.InferenceFrame(updates=[pb.SequenceUpdate(request_id=request_id, **parts)])


async def serve(options: argparse.Namespace) -> None:
    server = grpc.aio.server()
    engine = Engine(options)
    engine_pb2_grpc.add_EngineControlServicer_to_server(engine, server)
    inference_pb2_grpc.add_InferenceServicer_to_server(engine, server)
    server.add_insecure_port(f"unix:{options.socket}")
    await server.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await server.stop(None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--no-measure", action="store_true")
    parser.add_argument("--slots")
    parser.add_argument("--context")
    parser.add_argument("--kv-dir")
    parser.add_argument("--kv-shared")
    parser.add_argument("--identity")
    options = parser.parse_args()
    if b"broken" in options.model.read_bytes():
        sys.exit("cannot load: not a GGUF file")
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() == 1:
        sys.exit("the agent is gone")
    asyncio.run(serve(options))


if __name__ == "__main__":
    main()
