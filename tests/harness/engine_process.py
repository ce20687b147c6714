"""A real engine process and a client of its socket."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

from shoal.v1 import engine_pb2, engine_pb2_grpc, inference_pb2_grpc
from shoal.v1 import inference_pb2 as pb
from shoal.wire import CHANNEL_OPTIONS

READY_LIMIT_S = 90


@dataclass
class EngineProcess:
    """A running engine, ready to serve."""

    process: subprocess.Popen[bytes]
    socket: Path
    report: engine_pb2.ModelReport
    stderr: Path


@contextlib.contextmanager
def running_engine(model: Path, *flags: str) -> Iterator[EngineProcess]:
    """Start an engine on the model and end it afterwards."""
    with tempfile.TemporaryDirectory(prefix="shoal-test-") as folder:
        socket, stderr = Path(folder) / "e.sock", Path(folder) / "stderr"
        command = [sys.executable, "-m", "agent.llama.serve", "--socket", str(socket)]
        with stderr.open("wb") as log:
            process = subprocess.Popen([*command, "--model", str(model), *flags], stderr=log)
        try:
            yield EngineProcess(process, socket, _wait_ready(process, socket, stderr), stderr)
        finally:
            process.terminate()
            process.wait(20)


def _wait_ready(
    process: subprocess.Popen[bytes], socket: Path, stderr: Path
) -> engine_pb2.ModelReport:
    deadline = time.monotonic() + READY_LIMIT_S
    with grpc.insecure_channel(f"unix:{socket}", options=CHANNEL_OPTIONS) as channel:
        stub = engine_pb2_grpc.EngineControlStub(channel)
        pause = subprocess.TimeoutExpired
        while time.monotonic() < deadline:
            with contextlib.suppress(grpc.RpcError):
                report = stub.Describe(engine_pb2.DescribeRequest(), timeout=5)
                if report.state == engine_pb2.MODEL_STATE_READY:
                    return report
            with contextlib.suppress(pause):
                process.wait(0.05)
                raise RuntimeError(f"the engine ended: {stderr.read_text()[-500:]}")
    raise RuntimeError("the engine did not get ready in time")


@dataclass
class Answer:
    """All updates of one request, put together."""

    admitted: pb.Admitted | None = None
    text: str = ""
    deltas: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[pb.TokenLogprob] = field(default_factory=list)
    confidence: pb.Confidence = field(default_factory=pb.Confidence)
    finished: pb.Finished | None = None
    failed: pb.Failed | None = None

    def take(self, update: pb.SequenceUpdate) -> bool:
        """Add an update; True when it was the last."""
        if update.HasField("admitted"):
            self.admitted = update.admitted
        if update.HasField("delta"):
            self.text += update.delta.text
            self.deltas.append(update.delta.text)
            self.tokens += update.delta.tokens
            self.logprobs += update.delta.logprobs
            self.confidence.MergeFrom(update.delta.confidence)
        if update.HasField("finished"):
            self.finished = update.finished
        if update.HasField("failed"):
            self.failed = update.failed
        return self.finished is not None or self.failed is not None


class EngineClient:
    """One session with an engine; requests may run at once."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._control = engine_pb2_grpc.EngineControlStub(channel)
        self._call = inference_pb2_grpc.InferenceStub(channel).Session()
        self._reader = asyncio.create_task(self._read())
        self._updates: dict[str, asyncio.Queue[pb.SequenceUpdate]] = {}
        self._count = 0
        # grpc.aio loses writes that are begun at once.
        self._writing = asyncio.Lock()

    async def describe(self) -> engine_pb2.ModelReport:
        return await self._control.Describe(engine_pb2.DescribeRequest(), timeout=20)

    async def submit(self, request: pb.GenerateRequest) -> str:
        """Send a request; its id, made here unless it has one."""
        self._count += 1
        request.request_id = request.request_id or f"r{self._count}"
        self._updates[request.request_id] = asyncio.Queue()
        await self._write(pb.InferenceCommand(submit=request))
        return request.request_id

    async def cancel(self, request_id: str) -> None:
        await self._write(pb.InferenceCommand(cancel=pb.CancelRequest(request_id=request_id)))

    async def _write(self, command: pb.InferenceCommand) -> None:
        async with self._writing:
            await self._call.write(command)

    async def update(self, request_id: str) -> pb.SequenceUpdate:
        """The request's next update."""
        return await asyncio.wait_for(self._updates[request_id].get(), 60)

    async def answer(self, request_id: str) -> Answer:
        """Wait for the end of a request."""
        answer = Answer()
        while not answer.take(await self.update(request_id)):
            pass
        return answer

    async def run(self, request: pb.GenerateRequest) -> Answer:
        return await self.answer(await self.submit(request))

    async def idle(self) -> engine_pb2.ModelReport:
        """The report, once the engine says that nothing runs or waits."""
        async with asyncio.timeout(20):
            while True:
                report = await self.describe()
                if report.load.running == 0 and report.load.waiting == 0:
                    return report

    async def close(self) -> None:
        self._call.cancel()
        with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
            await self._reader

    async def _read(self) -> None:
        async for frame in self._call:
            for update in frame.updates:
                self._updates[update.request_id].put_nowait(update)


@contextlib.asynccontextmanager
async def engine_client(engine: EngineProcess) -> AsyncIterator[EngineClient]:
    """A session with the engine; its end cancels what still runs."""
    async with grpc.aio.insecure_channel(
        f"unix:{engine.socket}", options=CHANNEL_OPTIONS
    ) as channel:
        client = EngineClient(channel)
        try:
            yield client
        finally:
            await client.close()
