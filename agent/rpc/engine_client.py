"""The agent's end of one engine's Unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio

from agent.rpc.tls import describe
from shoal.v1 import engine_pb2, engine_pb2_grpc, inference_pb2_grpc
from shoal.v1 import inference_pb2 as pb
from shoal.wire import MAX_MESSAGE_BYTES

# Retries on a socket that the child has not opened yet come quickly.
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.enable_http_proxy", 0),
)
# Commands that the engine has not read yet; it reads them at once or it hangs.
_MAX_UNREAD_COMMANDS = 1024


class EngineClient:
    """Describe calls and one inference session with one engine process."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS)
        self._control = engine_pb2_grpc.EngineControlStub(self._channel)  # type: ignore[no-untyped-call]
        self._commands: asyncio.Queue[pb.InferenceCommand] = asyncio.Queue(_MAX_UNREAD_COMMANDS)

    async def describe(self, timeout_s: float) -> engine_pb2.ModelReport:
        """What the engine is; grpc.aio.AioRpcError when it does not answer in time."""
        report: engine_pb2.ModelReport = await self._control.Describe(
            engine_pb2.DescribeRequest(), timeout=timeout_s
        )
        return report

    def send(self, command: pb.InferenceCommand) -> bool:
        """Queue a command for the session; False when the engine reads none."""
        try:
            self._commands.put_nowait(command)
        except asyncio.QueueFull:
            return False
        return True

    async def run_session(self, on_frame: Callable[[pb.InferenceFrame], None]) -> str:
        """Carry commands and frames until the session ends; returns why."""
        stub = inference_pb2_grpc.InferenceStub(self._channel)  # type: ignore[no-untyped-call]
        call = stub.Session()
        writer = asyncio.create_task(self._write(call))
        try:
            async for frame in call:
                on_frame(frame)
            return "the engine closed the session"
        except grpc.aio.AioRpcError as error:
            return describe(error)
        finally:
            writer.cancel()
            call.cancel()

    async def close(self) -> None:
        """Close the socket; a running session is cancelled."""
        await self._channel.close()

    async def _write(
        self, call: grpc.aio.StreamStreamCall[pb.InferenceCommand, pb.InferenceFrame]
    ) -> None:
        try:
            while True:
                await call.write(await self._commands.get())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader sees the same end and reports it
