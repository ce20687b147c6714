"""The engine's socket: Inference and EngineControl over grpc.aio."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import structlog

from agent.engine.output import Load, Update
from agent.engine.request import RequestKey
from agent.llama.loop import EngineLoop
from agent.llama.owner import Owner
from agent.llama.prepare import RequestPreparer
from agent.llama.speculating import Order, Speculator
from agent.llama.wire import load_to_wire, update_to_wire
from shoal.errors import Reason, ShoalError
from shoal.v1 import engine_pb2, engine_pb2_grpc
from shoal.v1 import inference_pb2 as pb
from shoal.v1 import inference_pb2_grpc as pb_grpc

log = structlog.get_logger()

# The hub gives up sooner; writes that take this long are of no use to anybody.
_HAND_OVER_LIMIT_S = 20.0


class _Session:
    """One client's stream: what is being prepared for it and what it has to be sent."""

    def __init__(self, session_id: int) -> None:
        self.session_id = session_id
        self.preparing: dict[str, asyncio.Task[None]] = {}
        self.closed = False
        # Requests whose `finished` waits until their blocks are shared.
        self.prefills: set[str] = set()
        self._updates: list[pb.SequenceUpdate] = []
        self._load: pb.EngineLoad | None = None
        self._news = asyncio.Event()

    def push(self, update: pb.SequenceUpdate) -> None:
        """Add one update to the next frame."""
        self._updates.append(update)
        self._news.set()

    def push_load(self, load: pb.EngineLoad) -> None:
        """Put the newest load into the next frame."""
        self._load = load
        self._news.set()

    def close(self) -> None:
        """Let `frames` end."""
        self.closed = True
        self._news.set()

    async def frames(self) -> AsyncIterator[pb.InferenceFrame]:
        """Frames as news comes in; a slow reader gets several steps in one."""
        while not self.closed:
            await self._news.wait()
            self._news.clear()
            updates, self._updates = self._updates, []
            load, self._load = self._load, None
            if updates or load is not None:
                yield pb.InferenceFrame(updates=updates, load=load)


class EngineService(pb_grpc.InferenceServicer, engine_pb2_grpc.EngineControlServicer):
    """Serves one engine loop; all methods run on the event loop's thread."""

    def __init__(self, report: engine_pb2.ModelReport) -> None:
        self.report = report
        self._loop: EngineLoop | None = None
        self._preparer: RequestPreparer | None = None
        # Set once the model is loaded: requests that a verifier is named for go there.
        self.speculator: Speculator | None = None
        self._sessions: dict[int, _Session] = {}
        self._handing_over: set[asyncio.Task[None]] = set()
        self._session_ids = itertools.count(1)
        self._last_load = pb.EngineLoad()

    def set_ready(
        self, report: engine_pb2.ModelReport, loop: EngineLoop, preparer: RequestPreparer
    ) -> None:
        """The model is loaded: requests are taken from now on."""
        self.report, self._loop, self._preparer = report, loop, preparer

    def deliver(self, updates: list[Update], load: Load | None) -> None:
        """Hand one engine step's output to the sessions that it belongs to."""
        preparer = self._preparer
        for update in updates:
            session = self._sessions.get(update.key.session_id)
            if session is not None and preparer is not None:
                self._push(session, update_to_wire(update, preparer.piece))
            _log_end(update)
        if load is None:
            return
        message = load_to_wire(load, self.report.name)
        if message != self._last_load:
            self._last_load = message
            for session in self._sessions.values():
                session.push_load(message)

    def _push(self, session: _Session, update: pb.SequenceUpdate) -> None:
        if update.request_id not in session.prefills:
            session.push(update)
            return
        update.ClearField("delta")
        if update.HasField("finished") or update.HasField("failed"):
            session.prefills.discard(update.request_id)
        if not update.HasField("finished"):
            session.push(update)
            return
        task = asyncio.create_task(self._hand_over(session, update))
        self._handing_over.add(task)
        task.add_done_callback(self._handing_over.discard)

    async def _hand_over(self, session: _Session, finished: pb.SequenceUpdate) -> None:
        """Tell the end of a prompt that was computed for another device when that can have it."""
        if self._loop is not None:
            store = await Owner(self._loop).call(lambda core: core.hand_over())
            if store is not None:
                await asyncio.to_thread(store.drain_shared, _HAND_OVER_LIMIT_S)
        session.push(finished)

    async def Describe(
        self, request: engine_pb2.DescribeRequest, context: Any
    ) -> engine_pb2.ModelReport:
        """What the model is, how fast it was measured to be, and how busy it is."""
        report = engine_pb2.ModelReport()
        report.CopyFrom(self.report)
        report.load.CopyFrom(self._last_load)
        return report

    async def Session(
        self, request_iterator: AsyncIterator[pb.InferenceCommand], context: Any
    ) -> AsyncIterator[pb.InferenceFrame]:
        """Run the requests of one stream; its end, however it comes, cancels them all."""
        session = _Session(next(self._session_ids))
        self._sessions[session.session_id] = session
        reader = asyncio.create_task(self._read(session, request_iterator))
        try:
            async for frame in session.frames():
                yield frame
        finally:
            reader.cancel()
            self._drop(session)

    async def _read(self, session: _Session, commands: AsyncIterator[pb.InferenceCommand]) -> None:
        try:
            async for command in commands:
                kind = command.WhichOneof("command")
                if kind == "submit":
                    self._submit(session, command.submit)
                elif kind == "cancel":
                    self._cancel(session, command.cancel.request_id)
        finally:
            session.close()

    def _submit(self, session: _Session, request: pb.GenerateRequest) -> None:
        if request.request_id in session.preparing:
            error = ShoalError(
                Reason.INVALID_ARGUMENT, "request_id: is already in use", param="request_id"
            )
            session.push(pb.SequenceUpdate(request_id=request.request_id, failed=error.to_wire()))
            return
        task = asyncio.create_task(self._prepare(session, request))
        session.preparing[request.request_id] = task
        task.add_done_callback(lambda _: session.preparing.pop(request.request_id, None))

    async def _prepare(self, session: _Session, request: pb.GenerateRequest) -> None:
        try:
            if self._preparer is None or self._loop is None:
                raise ShoalError(
                    Reason.OVERLOADED, "the model is still loading", retry_after_ms=1000
                )
            prepared = await self._preparer.prepare(request, session.session_id)
        except ShoalError as error:
            self._refuse(session, request.request_id, error)
        except Exception:
            log.exception("request_preparation_failed", request_id=request.request_id)
            internal = ShoalError(Reason.INTERNAL, "the request could not be prepared")
            self._refuse(session, request.request_id, internal)
        else:
            if session.closed:
                return
            if request.prefill_only:
                session.prefills.add(request.request_id)
                prepared = replace(prepared, max_tokens=1, ignore_eos=True, stop=())
            if request.HasField("speculation") and self.speculator is not None:
                self.speculator.start(Order(prepared, request))
            else:
                self._loop.post(lambda core: core.submit(prepared))

    @staticmethod
    def _refuse(session: _Session, request_id: str, error: ShoalError) -> None:
        log.info("request_refused", request_id=request_id, reason=error.reason, param=error.param)
        session.push(pb.SequenceUpdate(request_id=request_id, failed=error.to_wire()))

    def _cancel(self, session: _Session, request_id: str) -> None:
        session.prefills.discard(request_id)
        preparing = session.preparing.get(request_id)
        if preparing is not None:
            preparing.cancel()
        if self._loop is not None:
            key = RequestKey(session.session_id, request_id)
            if self.speculator is not None:
                self.speculator.cancel(key)
            self._loop.post(lambda core: core.cancel(key))

    def _drop(self, session: _Session) -> None:
        session.closed = True
        self._sessions.pop(session.session_id, None)
        for task in session.preparing.values():
            task.cancel()
        if self.speculator is not None:
            self.speculator.cancel_session(session.session_id)
        if self._loop is not None:
            self._loop.post(lambda core: core.cancel_session(session.session_id))


def _log_end(update: Update) -> None:
    """One line for each request that ended; figures only, no text."""
    if update.finished is not None:
        timings = update.finished.timings
        log.info(
            "request_finished",
            request_id=update.key.request_id,
            reason=update.finished.reason,
            prompt_tokens=update.finished.prompt_tokens,
            completion_tokens=update.finished.completion_tokens,
            queue_ms=round(timings.queue_ms, 1),
            ttft_ms=round(timings.ttft_ms, 1),
            tpot_ms=round(timings.tpot_ms, 2),
        )
    elif update.failed is not None:
        log.info("request_failed", request_id=update.key.request_id, reason=update.failed.reason)
