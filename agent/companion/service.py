"""The companion's socket: Inference and EngineControl, as an engine speaks them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

from agent.companion.relay import Relay
from agent.companion.selftest import Speed
from agent.companion.settings import CompanionSettings
from shoal.v1 import engine_pb2, engine_pb2_grpc
from shoal.v1 import inference_pb2 as pb
from shoal.v1 import inference_pb2_grpc as pb_grpc

_LOAD_EVERY_S = 0.5


class _Session:
    """One client's stream; a slow reader gets several updates in one frame."""

    def __init__(self) -> None:
        self._updates: list[pb.SequenceUpdate] = []
        self._load: pb.EngineLoad | None = None
        self._news = asyncio.Event()
        self._closed = False

    def push(self, update: pb.SequenceUpdate) -> None:
        self._updates.append(update)
        self._news.set()

    def push_load(self, load: pb.EngineLoad) -> None:
        self._load = load
        self._news.set()

    def close(self) -> None:
        self._closed = True
        self._news.set()

    async def frames(self) -> AsyncIterator[pb.InferenceFrame]:
        while not self._closed:
            await self._news.wait()
            self._news.clear()
            updates, self._updates = self._updates, []
            load, self._load = self._load, None
            if updates or load is not None:
                yield pb.InferenceFrame(updates=updates, load=load)


class CompanionService(pb_grpc.InferenceServicer, engine_pb2_grpc.EngineControlServicer):
    """Serves one companion; all methods run on the event loop."""

    def __init__(self, settings: CompanionSettings) -> None:
        self.report = engine_pb2.ModelReport(
            name=settings.name,
            file=settings.upstream_model,
            state=engine_pb2.MODEL_STATE_LOADING,
            companion=settings.url,
        )
        self._relay: Relay | None = None
        self._sessions: dict[int, _Session] = {}
        self._session_ids = itertools.count(1)

    def set_ready(self, settings: CompanionSettings, speed: Speed, relay: Relay) -> None:
        """The server serves: requests are taken from now on."""
        report = self.report
        report.state = engine_pb2.MODEL_STATE_READY
        report.num_parameters = settings.num_parameters
        report.context_tokens = settings.context_tokens
        report.quantisation = settings.quantisation
        report.slots = settings.slots
        report.has_chat_template = True
        report.no_cache_reason = "the companion server keeps its own KV"
        report.prefill_tokens_per_s = speed.prefill
        if speed.decode_batch:
            report.decode_tokens_per_s = speed.decode_batch[0]
            report.decode_batch_tokens_per_s[:] = speed.decode_batch
        self._relay = relay

    async def tell_load(self) -> None:
        """Tell sessions how busy the companion is, whenever that changed; never returns."""
        last = pb.EngineLoad()
        while True:
            await asyncio.sleep(_LOAD_EVERY_S)
            load = self._relay.load() if self._relay is not None else last
            if load != last:
                last = load
                for session in self._sessions.values():
                    session.push_load(load)

    async def Describe(
        self, request: engine_pb2.DescribeRequest, context: Any
    ) -> engine_pb2.ModelReport:
        """What the companion serves, how fast it was measured to be, and how busy it is."""
        report = engine_pb2.ModelReport()
        report.CopyFrom(self.report)
        if self._relay is not None:
            report.load.CopyFrom(self._relay.load())
        return report

    async def Session(
        self, request_iterator: AsyncIterator[pb.InferenceCommand], context: Any
    ) -> AsyncIterator[pb.InferenceFrame]:
        """Run the requests of one stream; its end, however it comes, cancels them all."""
        session_id, session = next(self._session_ids), _Session()
        self._sessions[session_id] = session
        reader = asyncio.create_task(self._read(session_id, session, request_iterator))
        try:
            async for frame in session.frames():
                yield frame
        finally:
            reader.cancel()
            del self._sessions[session_id]
            if self._relay is not None:
                self._relay.cancel_session(session_id)

    async def _read(
        self, session_id: int, session: _Session, commands: AsyncIterator[pb.InferenceCommand]
    ) -> None:
        try:
            async for command in commands:
                kind = command.WhichOneof("command")
                if self._relay is None:
                    continue  # nobody submits before READY
                if kind == "submit":
                    request = command.submit
                    self._relay.submit((session_id, request.request_id), request, session.push)
                elif kind == "cancel":
                    self._relay.cancel((session_id, command.cancel.request_id))
        finally:
            session.close()
