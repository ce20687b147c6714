"""One attempt at the outbound stream: frames out, frames in, one end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import grpc.aio
import structlog

from agent.rpc.identity import Identity
from agent.rpc.tls import describe, link_channel
from shoal.tasks import cancelled
from shoal.v1 import device_pb2 as pb
from shoal.v1 import device_pb2_grpc as rpc

log = structlog.get_logger()

# Some minutes of steps at full speed. A hub that lags so far behind is as good as gone.
_MAX_UNSENT_FRAMES = 4096
_FLUSH_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class LinkEvents:
    """Called from the event loop; neither is called after `LinkStream.detach`."""

    on_frame: Callable[[pb.HubFrame], None]
    on_end: Callable[[str], None]


class LinkStream:
    """One DeviceLink.Connect call on a channel of its own."""

    def __init__(self, events: LinkEvents) -> None:
        self._events = events
        self._outbox: asyncio.Queue[pb.DeviceFrame | None] = asyncio.Queue(_MAX_UNSENT_FRAMES)
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def open(self, address: str, identity: Identity, hello: pb.Hello) -> None:
        """Dial and send Hello; returns at once, what follows comes as events."""
        self._outbox.put_nowait(pb.DeviceFrame(hello=hello))
        self._task = asyncio.create_task(self._run(address, identity))

    def send(self, frame: pb.DeviceFrame) -> None:
        """Queue a frame; when the hub reads too slowly the stream ends."""
        try:
            self._outbox.put_nowait(frame)
        except asyncio.QueueFull:
            self._end("the hub reads too slowly")

    def detach(self) -> None:
        """No more events from now on."""
        self._closed = True

    async def close(self, *, flush: bool) -> None:
        """Detach and end the stream; with `flush` let out what is queued first."""
        self.detach()
        if self._task is None:
            return
        if flush and not self._outbox.full():
            self._outbox.put_nowait(None)
            await asyncio.wait([self._task], timeout=_FLUSH_WITHIN_S)
        await cancelled([self._task])

    def _end(self, why: str) -> None:
        if not self._closed:
            self._closed = True
            self._events.on_end(why)

    async def _run(self, address: str, identity: Identity) -> None:
        async with link_channel(address, identity) as channel:
            call = rpc.DeviceLinkStub(channel).Connect()  # type: ignore[no-untyped-call]
            writer = asyncio.create_task(self._write(call))
            try:
                async for frame in call:
                    if not self._closed:
                        self._events.on_frame(frame)
                why = "the hub closed the stream"
            except grpc.aio.AioRpcError as error:
                why = describe(error)
            except Exception as error:
                log.error("hub_frame_failed", exc_info=error)
                why = f"a frame could not be handled: {error!r}"
            finally:
                writer.cancel()
                call.cancel()
        self._end(why)

    async def _write(self, call: grpc.aio.StreamStreamCall[pb.DeviceFrame, pb.HubFrame]) -> None:
        try:
            while (frame := await self._outbox.get()) is not None:
                await call.write(frame)
            await call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader sees the same end and reports it
