"""The agent at work: one connection, its engines, and what passes between them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from agent.hardware.account import EnergyAccount
from agent.hardware.energy import Meters
from agent.hardware.load import LoadSampler
from agent.rpc import convert
from agent.rpc.bridge import Bridge
from agent.rpc.charging import Charging
from agent.rpc.engines import Companion, Engines, EngineSettings
from agent.rpc.extension import Extension
from agent.rpc.hub_files import HubFiles
from agent.rpc.link import LinkEvents, LinkStream
from agent.rpc.local import LocalRequests, placed_here
from agent.rpc.membership import Membership
from agent.rpc.path import watch_path
from agent.rpc.stages import Stages
from agent.rpc.tasks import Tasks
from agent.session import connection as conn
from agent.session.backoff import Backoff
from agent.session.errors import AgentError, ExitCode
from agent.session.hub_order import dial_order
from agent.session.requests import RequestLedger
from shoal import __version__
from shoal.v1 import device_pb2 as pb
from shoal.v1 import engine_pb2, inference_pb2
from shoal.wire import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class DeviceParts:
    """What a device is made of; `grace_s`: how long running requests may finish at the end."""

    membership: Membership
    capabilities: pb.CapabilityReport
    engines: EngineSettings
    backoff: Backoff
    stages: Stages
    meters: Meters
    companions: tuple[Companion, ...] = ()
    grace_s: float = 3.0


class Device:
    """Wires connection, bridge and engines; everything runs on one event loop."""

    def __init__(self, parts: DeviceParts) -> None:
        now = asyncio.get_running_loop().time()
        self._parts = parts
        self._membership = parts.membership
        self._connection = conn.Connection(parts.backoff, now=now)
        self._ledger = RequestLedger()
        hub_files = HubFiles(lambda: parts.membership.identity)
        self._engines = Engines(parts.engines, self, hub_files)
        estimated_w = parts.capabilities.tdp_w if parts.capabilities.HasField("tdp_w") else None
        self._charging = Charging(
            EnergyAccount(parts.meters, estimated_w), asyncio.get_running_loop().time
        )
        self._bridge = Bridge(
            self._ledger,
            self._engines.find,
            lambda frame: self.send(pb.DeviceFrame(inference=frame)),
            self._charging,
        )
        self._sampler = LoadSampler(now=now, meters=parts.meters)
        self.extensions: list[Extension] = []
        self._stream: LinkStream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks(self._task_failed)
        placed = placed_here(parts.membership.identity, parts.capabilities)
        self.local = LocalRequests(placed, self._engines, self._charging, self._note_idle)
        self._over: asyncio.Future[conn.GiveUp] = asyncio.get_running_loop().create_future()
        self._leaving: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._closing: set[asyncio.Task[None]] = set()

    async def run(self, models: dict[str, Path]) -> conn.GiveUp:
        """Serve until told to leave, rejected for good, or without a valid certificate."""
        for name, file in models.items():
            self._engines.start(name, file)
        for companion in self._parts.companions:
            self._engines.start_companion(companion)
        self._feed(conn.Tick())
        self._tasks.spawn(self._keep_certificate())
        hubs = lambda: self._membership.identity.hub_addresses  # noqa: E731
        self._tasks.spawn(watch_path(self._connection, hubs, lambda: self._feed(conn.Reachable())))
        if self._parts.meters.need_sampling:
            self._tasks.spawn(self._charging.sample_forever())
        try:
            return await self._over
        finally:
            if self._timer is not None:
                self._timer.cancel()
            await asyncio.gather(self._engines.stop(), *self._closing)
            await self._tasks.end()

    def leave(self, reason: str, *, grace_s: float | None) -> None:
        """Take nothing new, let running requests finish for `grace_s` (None: all), then go.

        A second call ends the waiting.
        """
        self._ledger.drain(reason)
        self.local.drain(reason)
        if self._leaving is not None:
            self._feed(conn.Leave(reason))
            return
        self._leaving = self._tasks.spawn(self._leave_when_idle(reason, grace_s))

    # What engines report (EngineListener).

    def engine_frame(self, model: str, frame: inference_pb2.InferenceFrame) -> None:
        """A step's output goes up as it is."""
        if len(self.local):
            self.local.take_frame(frame)
        self._bridge.take_frame(frame)
        self._note_idle()

    def engine_changed(self, report: engine_pb2.ModelReport) -> None:
        """Tell hub and starter."""
        self.send(pb.DeviceFrame(model=report))
        self._parts.stages.say_model(report)

    def engine_lost_requests(self, model: str, message: str) -> None:
        """What ran there fails now; the hub may run it elsewhere."""
        self._bridge.fail_model(model, message)
        self.local.fail_model(model, message)
        self._note_idle()

    # The connection: events in, effects out.

    def _feed(self, event: conn.Event) -> None:
        now = asyncio.get_running_loop().time()
        for effect in self._connection.handle(event, now):
            self._do(effect)
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._connection.deadline()
        self._timer = (
            None
            if deadline is None
            else asyncio.get_running_loop().call_later(
                max(0.0, deadline - now), self._feed, conn.Tick()
            )
        )

    def _do(self, effect: conn.Effect) -> None:
        match effect:
            case conn.Dial(attempt):
                self._dial(attempt)
            case conn.SendHeartbeat():
                self.send(pb.DeviceFrame(heartbeat=self._heartbeat()))
            case conn.Announce(epoch):
                log.info("connected", epoch=epoch)
                self._parts.stages.say("connected", epoch=epoch)
            case conn.SendGoodbye(reason, epoch):
                self._post(pb.DeviceFrame(epoch=epoch, goodbye=pb.Goodbye(reason=reason)))
            case conn.Drop(why):
                self._drop(why)
            case conn.LookUpHubs():
                self._tasks.spawn(self._membership.look_up_hubs())
            case conn.GiveUp():
                if not self._over.done():
                    self._over.set_result(effect)

    def _dial(self, attempt: int) -> None:
        identity = self._membership.identity
        addresses = dial_order(identity.device_id, identity.hub_addresses)
        hello = pb.Hello(
            min_protocol=MIN_PROTOCOL_VERSION,
            max_protocol=PROTOCOL_VERSION,
            agent_version=__version__,
            capabilities=self._parts.capabilities,
            models=self._engines.reports(),
            device_unix_ms=time.time_ns() // 10**6,
            last_epoch=self._connection.last_epoch,
        )
        for extension in self.extensions:
            extension.greet(hello)
        self._stream = LinkStream(
            LinkEvents(self._take_hub_frame, lambda why: self._feed(conn.Broken(why)))
        )
        self._stream.open(addresses[attempt % len(addresses)], identity, hello)

    def _drop(self, why: str) -> None:
        self._bridge.cancel_all()
        self._note_idle()
        stream, self._stream = self._stream, None
        if stream is None:
            return
        stream.detach()
        log.info("disconnected", why=why)
        closing = self._tasks.spawn(
            stream.close(flush=self._connection.phase is conn.Phase.STOPPED)
        )
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _take_hub_frame(self, frame: pb.HubFrame) -> None:
        match frame.WhichOneof("frame"):
            case "inference":
                self._bridge.take_command(frame.inference)
                self._note_idle()
            case "heartbeat_ack":
                self._feed(convert.acknowledged(frame.heartbeat_ack))
            case "welcome":
                self._feed(convert.welcomed(frame.welcome))
                self._greeted(frame.welcome.protocol)
                self._tasks.spawn(self._membership.follow_cache(frame.welcome.cache_digest))
            case "reject":
                self._feed(convert.rejected(frame.reject))
            case "load_model":
                self._engines.load(frame.load_model)
            case "unload_model":
                self._engines.unload(frame.unload_model.name)
            case "drain":
                self.leave(frame.drain.reason or "drained", grace_s=None)
            case unknown if not any(extension.take(frame) for extension in self.extensions):
                log.warning("hub_frame_ignored", kind=unknown)

    def _greeted(self, protocol: int) -> None:
        """A model may have changed its state between Hello and Welcome."""
        for report in self._engines.reports():
            self.send(pb.DeviceFrame(model=report))
        for extension in self.extensions if self.is_connected() else ():
            extension.welcomed(protocol)

    def is_connected(self) -> bool:
        """Whether a hub has welcomed this device."""
        return self._connection.phase is conn.Phase.CONNECTED

    @property
    def is_idle(self) -> bool:
        """Whether nothing is loaded, runs or waits here."""
        loads = any(e.state == engine_pb2.MODEL_STATE_LOADING for e in self._engines.reports())
        return not loads and not len(self._ledger) and not len(self.local)

    def send(self, frame: pb.DeviceFrame) -> bool:
        """Send under the present epoch; False without a connection, when nobody is told."""
        connected = self.is_connected()
        if connected:
            frame.epoch = self._connection.epoch
            self._post(frame)
        return connected

    def _post(self, frame: pb.DeviceFrame) -> None:
        if self._stream is not None:
            self._stream.send(frame)

    def _heartbeat(self) -> pb.Heartbeat:
        now = asyncio.get_running_loop().time()
        sample = self._sampler.sample((os.getpid(), *self._engines.pids()), now)
        load, engines = convert.device_load(sample), self._engines.loads()
        load.conditions.extend(convert.sharing_conditions(engines))
        if convert.CACHE_REFUSES_US in load.conditions:
            self._tasks.spawn(self._membership.cache_refused())
        return pb.Heartbeat(
            load=load,
            engines=engines,
            device_unix_ms=time.time_ns() // 10**6,
        )

    # Leaving and staying.

    async def _leave_when_idle(self, reason: str, grace_s: float | None) -> None:
        self._note_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        self._feed(conn.Leave(reason))

    def _note_idle(self) -> None:
        """Called after what may have ended a request."""
        if self._ledger.draining and not len(self._ledger) and not len(self.local):
            self._idle.set()

    async def _keep_certificate(self) -> None:
        try:
            await self._membership.keep_certificate_fresh()
        except AgentError as error:
            self._do(conn.GiveUp(error.exit_code, error.message))  # before that of Leave
            self._feed(conn.Leave(error.message))

    def _task_failed(self, error: BaseException) -> None:
        log.error("agent_task_failed", exc_info=error)
        if not self._over.done():
            self._over.set_result(conn.GiveUp(ExitCode.INTERNAL, repr(error)))
