"""The engine of one replica: a child process, and one inference session with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
import grpc.aio
import structlog

from shoal.errors import Reason, ShoalError
from shoal.hosted import HostedModel
from shoal.http.generation import Mailbox, failed_update
from shoal.kv_budget import MIB
from shoal.openai.tier_use import TierUse
from shoal.tasks import cancelled
from shoal.v1 import engine_pb2, engine_pb2_grpc, inference_pb2_grpc
from shoal.v1 import inference_pb2 as pb
from shoal.wire import CHANNEL_OPTIONS

log = structlog.get_logger()

_POLL_S = 0.05
_STOP_LIMIT_S = 5.0
_LAST_WORDS_LIMIT_S = 1.0


class ColdStartError(Exception):
    """The model was not loaded in time, or its engine ended before; the text says why."""


class NoCosts:
    """The gateway counts what a request costs, not the node."""

    uses: dict[str, TierUse] = {}  # noqa: RUF012 - never written
    joules: dict[str, float] = {}  # noqa: RUF012
    cascade: None = None


class HostedGeneration:
    """One sequence (`shoal.http.generation.Generation`)."""

    tier = "cloud"
    account = NoCosts()

    def __init__(self, mailbox: Mailbox, engine: HostedEngine, request_id: str) -> None:
        self._mailbox = mailbox
        self._engine = engine
        self._request_id = request_id

    async def take(self) -> Sequence[pb.SequenceUpdate]:
        """See `Generation.take`."""
        return await self._mailbox.take()

    def cancel(self) -> None:
        """See `Generation.cancel`."""
        self._engine.cancel(self._request_id)


class HostedEngine:
    """Started once; when its process ends, so does its use: `ended` tells."""

    def __init__(self, model: HostedModel, folder: Path) -> None:
        self._model = model
        self._socket = folder / "engine.sock"
        self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=CHANNEL_OPTIONS)
        self._commands: asyncio.Queue[pb.InferenceCommand] = asyncio.Queue()
        self._mailboxes: dict[str, Mailbox] = {}
        self._child: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._last_words = ""

    async def start(self) -> None:
        """Load the model; raises ColdStartError after `cold_start_s`, or when that fails."""
        child = self._child = await asyncio.create_subprocess_exec(
            *engine_command(self._model, self._socket),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        log_copy = asyncio.create_task(self._copy_log(child))
        self._tasks = [log_copy]
        ended = asyncio.create_task(child.wait())
        ready = asyncio.create_task(self._until_ready())
        await asyncio.wait(
            (ready, ended),
            timeout=self._model.cold_start_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        ended.cancel()
        if not ready.done():
            ready.cancel()
            if child.returncode is not None:
                # The pipe ends with the process, unless a child of the engine's outlives it.
                await asyncio.wait({log_copy}, timeout=_LAST_WORDS_LIMIT_S)
                words = self._last_words.replace(self._model.file, Path(self._model.file).name)
                raise ColdStartError(
                    f"{self._model.name} cannot be loaded: {words or 'its engine gave no reason'} "
                    f"(exit code {child.returncode})"
                )
            raise ColdStartError(
                f"{self._model.name} was not loaded within {self._model.cold_start_s:g} s; raise "
                "'cold_start_s' if the model is sound"
            )
        stub = inference_pb2_grpc.InferenceStub(self._channel)  # type: ignore[no-untyped-call]
        call = stub.Session()
        self._tasks += [
            asyncio.create_task(self._write(call)),
            asyncio.create_task(self._read(call)),
        ]

    async def ended(self) -> int:
        """Wait for the process's end; its exit code."""
        return await self._child.wait() if self._child else 0

    def submit(self, request: pb.GenerateRequest) -> HostedGeneration:
        """Begin a sequence."""
        mailbox = self._mailboxes[request.request_id] = Mailbox()
        mailbox.put(
            pb.SequenceUpdate(
                request_id=request.request_id,
                placed=pb.Placed(device_name=self._model.name, device_class="cloud", attempt=1),
            )
        )
        self._commands.put_nowait(pb.InferenceCommand(submit=request))
        return HostedGeneration(mailbox, self, request.request_id)

    def cancel(self, request_id: str) -> None:
        """Stop a sequence, if it still runs."""
        if self._mailboxes.pop(request_id, None) is not None:
            cancel = pb.CancelRequest(request_id=request_id)
            self._commands.put_nowait(pb.InferenceCommand(cancel=cancel))

    async def stop(self) -> None:
        """End the process and everything that ran."""
        await cancelled(self._tasks)
        await self._channel.close()
        if self._child is not None and self._child.returncode is None:
            self._child.terminate()
            try:
                async with asyncio.timeout(_STOP_LIMIT_S):
                    await self._child.wait()
            except TimeoutError:
                self._child.kill()
                await self._child.wait()

    async def _copy_log(self, child: asyncio.subprocess.Process) -> None:
        """The engine's stderr to the replica's; its last line is why it ended."""
        while child.stderr is not None and (line := await child.stderr.readline()):
            sys.stderr.write(text := line.decode("utf-8", "replace"))
            self._last_words = text.strip().removeprefix("shoal engine: ") or self._last_words

    async def _until_ready(self) -> None:
        stub = engine_pb2_grpc.EngineControlStub(self._channel)  # type: ignore[no-untyped-call]
        state = engine_pb2.MODEL_STATE_LOADING
        while state != engine_pb2.MODEL_STATE_READY:
            # Until it listens, every call is refused at once.
            with contextlib.suppress(grpc.aio.AioRpcError):
                report = await stub.Describe(engine_pb2.DescribeRequest(), timeout=5)
                state = report.state
            await asyncio.sleep(_POLL_S)

    async def _write(
        self, call: grpc.aio.StreamStreamCall[pb.InferenceCommand, pb.InferenceFrame]
    ) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await call.write(await self._commands.get())

    async def _read(
        self, call: grpc.aio.StreamStreamCall[pb.InferenceCommand, pb.InferenceFrame]
    ) -> None:
        try:
            async for frame in call:
                for update in frame.updates:
                    self._deliver(update)
        except grpc.aio.AioRpcError as error:
            log.error("engine_session_ended", code=error.code().name)
        finally:
            lost = ShoalError(Reason.ENGINE_CRASHED, "The model's process ended. Try again.")
            for request_id, mailbox in self._mailboxes.items():
                mailbox.put(failed_update(request_id, lost))
            self._mailboxes.clear()

    def _deliver(self, update: pb.SequenceUpdate) -> None:
        mailbox = self._mailboxes.get(update.request_id)
        if mailbox is None:
            return
        mailbox.put(update)
        if update.HasField("finished") or update.HasField("failed"):
            del self._mailboxes[update.request_id]


def engine_command(model: HostedModel, socket: Path) -> list[str]:
    """The engine's command line; it is measured by nobody, so that a cold start is short."""
    command = [sys.executable, "-m", "agent.llama.serve", "--socket", str(socket)]
    command += ["--model", model.file, "--name", model.name, "--parent", str(os.getpid())]
    command += ["--slots", str(model.slots), "--context", str(model.context_tokens)]
    command += ["--kv-host-mib", str(model.cache_bytes // MIB), "--no-measure"]
    return [*command, "--threads", str(model.cpus)] if model.cpus else command
