"""One model's engine: carries out what its supervision decides."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol

import grpc
import grpc.aio
import structlog

from agent.rpc import convert
from agent.rpc.engine_client import EngineClient
from agent.rpc.engine_process import EngineProcess, EngineSpec
from agent.rpc.tls import describe
from agent.session import supervision as sup
from shoal.tasks import cancelled
from shoal.v1 import engine_pb2
from shoal.v1 import inference_pb2 as pb

log = structlog.get_logger()

# Also the freshness of the load in heartbeats of an idle engine.
_PROBE_EVERY_S = 2.0
# The asyncio thread of an engine answers while another thread decodes.
_ANSWER_WITHIN_S = 10.0
# Grows while a large model loads: a poll costs half a millisecond.
_FIRST_READY_POLL_S = 0.05
_LAST_READY_POLL_S = 0.25


class EngineListener(Protocol):
    """Where an engine's news goes."""

    def engine_frame(self, model: str, frame: pb.InferenceFrame) -> None:
        """A step's output."""

    def engine_changed(self, report: engine_pb2.ModelReport) -> None:
        """The model is in another state."""

    def engine_lost_requests(self, model: str, message: str) -> None:
        """What ran in the engine will get no more updates."""


class EngineHost:
    """Runs, watches and restarts one engine process."""

    def __init__(
        self,
        spec: EngineSpec,
        command: Callable[[EngineSpec], Sequence[str]],
        listener: EngineListener,
    ) -> None:
        self.spec = spec
        self._command = command
        self._listener = listener
        self._machine = sup.Supervision(patient=spec.patient)
        self._process: EngineProcess | None = None
        self._client: EngineClient | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self._described = engine_pb2.ModelReport(name=spec.name, file=spec.file.name)
        # Speeds of the first start: an engine that comes back does not measure again.
        self._measured: engine_pb2.ModelReport | None = None

    @property
    def report(self) -> engine_pb2.ModelReport:
        """What the engine said of itself, in its present state."""
        report = engine_pb2.ModelReport()
        report.CopyFrom(self._described)
        report.state = convert.model_state(self._machine.state)
        report.failure = self._machine.failure
        if report.failure:
            report.failure_kind = engine_pb2.FAILURE_KIND_ENGINE
        if self.spec.sha256:
            report.deployed, report.file_sha256 = True, self.spec.sha256
        return report

    @property
    def load(self) -> pb.EngineLoad | None:
        """The latest load seen; None while the engine does not serve."""
        ready = self._machine.state is sup.EngineState.READY
        return self._described.load if ready else None

    @property
    def pid(self) -> int | None:
        """Process id of the child, if there is one."""
        return self._process.pid if self._process else None

    @property
    def failure(self) -> str:
        """Why the model was given up; empty otherwise."""
        return self._machine.failure

    def start(self) -> None:
        """Bring the engine up; returns at once."""
        self._feed(sup.Start())

    def send(self, command: pb.InferenceCommand) -> bool:
        """Hand a command to the engine; False when it does not serve now."""
        ready = self._machine.state is sup.EngineState.READY
        return ready and self._client is not None and self._client.send(command)

    async def stop(self) -> None:
        """End the engine for good and wait until the child is gone."""
        self._feed(sup.Stop())
        await self._ended.wait()
        if self._timer is not None:
            self._timer.cancel()
        await cancelled(self._tasks)

    def _feed(self, event: sup.Event) -> None:
        now = asyncio.get_running_loop().time()
        for effect in self._machine.handle(event, now):
            self._do(effect)
        if self._machine.has_child:
            self._ended.clear()
        else:
            self._ended.set()
        self._rearm(now)

    def _rearm(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._machine.deadline()
        self._timer = (
            None
            if deadline is None
            else asyncio.get_running_loop().call_later(
                max(0.0, deadline - now), self._feed, sup.Tick()
            )
        )

    def _do(self, effect: sup.Effect) -> None:
        if isinstance(effect, sup.Spawn):
            self._spawn_task(self._run_child())
        elif isinstance(effect, sup.Terminate) and self._process:
            self._process.signal(signal.SIGTERM)
        elif isinstance(effect, sup.Kill) and self._process:
            self._process.signal(signal.SIGKILL)
        elif isinstance(effect, sup.FailRunning):
            self._listener.engine_lost_requests(self.spec.name, effect.message)
        elif isinstance(effect, sup.Report):
            log.info(
                "engine_state",
                model=self.spec.name,
                state=effect.state.name.lower(),
                failure=effect.failure,
                restarts=self._machine.num_restarts,
            )
            self._listener.engine_changed(self.report)

    def _spawn_task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("engine_task_failed", model=self.spec.name, exc_info=error)
            self._feed(sup.Unresponsive(repr(error)))

    async def _run_child(self) -> None:
        """Life of one child, from spawn to exit."""
        try:
            spec = dataclasses.replace(self.spec, measure=self._measured is None)
            process = await EngineProcess.spawn(self._command(spec), spec.socket)
        except OSError as error:
            self._feed(sup.Exited(f"cannot start: {error}"))
            return
        self._process = process
        self._client = EngineClient(self.spec.socket)
        if self._machine.state is sup.EngineState.STOPPING:
            process.signal(signal.SIGTERM)
        serving = self._spawn_task(self._serve(self._client))
        try:
            reason = await process.wait()
        finally:
            await cancelled([serving])
            await self._client.close()
            self._process = self._client = None
        self._feed(sup.Exited(reason, hopeless=process.says_hopeless))

    async def _serve(self, client: EngineClient) -> None:
        """From the child's first breath: wait until it serves, then carry and probe."""
        await self._wait_until_ready(client)
        session = asyncio.create_task(client.run_session(self._take_frame))
        self._feed(sup.BecameReady())
        probe = asyncio.create_task(self._probe(client))
        try:
            done, _ = await asyncio.wait((session, probe), return_when=asyncio.FIRST_COMPLETED)
            why = done.pop().result()
            # A dying child ends its session first: its exit tells more than that.
            await asyncio.sleep(1.0)
            self._feed(sup.Unresponsive(why))
        finally:
            session.cancel()
            probe.cancel()

    async def _wait_until_ready(self, client: EngineClient) -> None:
        """Poll; how long that may take is the supervision's decision."""
        pause_s = _FIRST_READY_POLL_S
        while True:
            try:
                self._take_description(await client.describe(_ANSWER_WITHIN_S))
            except grpc.aio.AioRpcError as error:
                log.debug("engine_not_ready", model=self.spec.name, why=describe(error))
            else:
                if self._described.state == engine_pb2.MODEL_STATE_READY:
                    return
            await asyncio.sleep(pause_s)
            pause_s = min(_LAST_READY_POLL_S, pause_s * 1.1)

    async def _probe(self, client: EngineClient) -> str:
        """Ask the engine regularly; returns when it did not answer, with the reason."""
        while True:
            await asyncio.sleep(_PROBE_EVERY_S)
            try:
                self._take_description(await client.describe(_ANSWER_WITHIN_S))
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    return f"no answer within {_ANSWER_WITHIN_S:g} s"
                return describe(error)

    def _take_description(self, report: engine_pb2.ModelReport) -> None:
        if report.decode_tokens_per_s > 0:
            self._measured = report
        elif self._measured is not None:
            report.prefill_tokens_per_s = self._measured.prefill_tokens_per_s
            report.decode_tokens_per_s = self._measured.decode_tokens_per_s
            curve = self._measured.decode_batch_tokens_per_s
            report.decode_batch_tokens_per_s[:] = curve
        self._described = report

    def _take_frame(self, frame: pb.InferenceFrame) -> None:
        if frame.HasField("load"):
            self._described.load.CopyFrom(frame.load)
        self._listener.engine_frame(self.spec.name, frame)
