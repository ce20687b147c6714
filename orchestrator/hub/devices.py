"""The devices whose streams end in this hub: carries out what the lifecycle decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import structlog

from orchestrator.config import HubConfig
from orchestrator.fleet.lifecycle import LeaseTerms, Lifecycle
from orchestrator.fleet.lifecycle_events import (
    Close,
    CloseCause,
    Connected,
    DrainRequested,
    Effect,
    Enrolled,
    Event,
    Forgotten,
    GoodbyeReceived,
    HeartbeatReceived,
    Lost,
    Progressed,
    Removed,
    RestartAnnounced,
    SendDrain,
    StateChanged,
    StreamClosed,
    Tick,
)
from orchestrator.fleet.registry import DeviceEntry, Registry, StateReport
from orchestrator.fleet.view import DeviceId, DeviceState
from orchestrator.fleet.view_store import ViewStore
from orchestrator.hub import convert
from orchestrator.hub.clock import Clock
from orchestrator.hub.connection import DeviceConnection, Rejected
from orchestrator.hub.outbox import Outbox
from orchestrator.hub.roster import Known, Roster
from shoal.errors import ShoalError
from shoal.v1 import device_pb2, engine_pb2, inference_pb2
from shoal.wire import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION, agree_on_protocol

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class DeviceParts:
    """What Devices works on."""

    config: HubConfig
    registry: Registry
    views: ViewStore
    clock: Clock
    # Of what a device is told of the shared KV blocks; empty: nothing.
    cache_digest: Callable[[DeviceId], bytes] = lambda _: b""


class Devices:
    """Connections, leases and reports of this hub's devices."""

    def __init__(self, parts: DeviceParts, on_lost: Callable[[DeviceId, int], None]) -> None:
        self._config = parts.config
        self._registry = parts.registry
        self._views = parts.views
        self._clock = parts.clock
        self._cache_digest = parts.cache_digest
        self._on_lost = on_lost
        self._terms = LeaseTerms(
            heartbeat_interval_ms=parts.config.heartbeat_interval_ms,
            lease_ms=parts.config.lease_ms,
            silence_ms=parts.config.lease_ms // 2,
        )
        self._lifecycle = Lifecycle(self._terms)
        self._open: dict[tuple[DeviceId, int], DeviceConnection] = {}
        self._current: dict[DeviceId, DeviceConnection] = {}
        self.roster = Roster(parts.config.hub_id, parts.registry, self._handle)

    async def connect(self, device_id: DeviceId, hello: device_pb2.Hello) -> DeviceConnection:
        """Welcome the device on a new stream with a newer epoch; raises Rejected.

        The frames that wait in the connection's outbox start with Welcome.
        """
        protocol = agree_on_protocol(hello.min_protocol, hello.max_protocol)
        if protocol is None:
            raise Rejected(
                device_pb2.Reject.REASON_PROTOCOL,
                f"the hub speaks protocol {MIN_PROTOCOL_VERSION} to {PROTOCOL_VERSION}, the agent "
                f"{hello.min_protocol} to {hello.max_protocol}; upgrade the older one",
            )
        entry, epoch = await self.roster.admit(device_id, hello.last_epoch, self._known(device_id))
        state = self._lifecycle.state_of(device_id) or entry.state
        try:
            view = replace(
                convert.device_view(device_id, entry.name, state, hello),
                max_waiting=self._places(hello.models),
            )
        except ShoalError as error:
            raise Rejected(device_pb2.Reject.REASON_BAD_FRAME, error.message) from error
        unix_ms = self._clock.unix_ms()
        connection = DeviceConnection(
            device_id=device_id,
            name=entry.name,
            epoch=epoch,
            protocol=protocol,
            agent_version=hello.agent_version,
            installation=hello.installation,
            capabilities=hello.capabilities,
            outbox=Outbox(self._config.device_queue_frames),
            models={model.name: model for model in hello.models},
            last_seen_unix_ms=unix_ms,
            clock_skew_ms=hello.device_unix_ms - unix_ms if hello.device_unix_ms else 0,
        )
        connection.welcome(self._config.hub_id, self._terms, self._cache_digest(device_id))
        for request_id in hello.running_request_ids:
            # Left over from an earlier connection: their requests failed or moved.
            command = inference_pb2.InferenceCommand()
            command.cancel.request_id = request_id
            connection.send(device_pb2.HubFrame(inference=command))
        self._open[device_id, epoch] = connection
        if epoch > self._lifecycle.epoch_of(device_id):
            self._current[device_id] = connection
            self._views.put(view)
        self._handle(Connected(device_id, epoch))
        return connection

    def _known(self, device_id: DeviceId) -> Known:
        connection = self._current.get(device_id)
        return Known(
            connection.name if connection is not None else "",
            self._lifecycle.epoch_of(device_id),
            self._lifecycle.state_of(device_id) is DeviceState.REVOKED,
        )

    @property
    def num_connected(self) -> int:
        """Streams that are open now."""
        return len(self._open)

    def connections(self) -> list[DeviceConnection]:
        """The newest connection of each device of this hub, open or not."""
        return list(self._current.values())

    def is_current(self, connection: DeviceConnection) -> bool:
        """Whether frames of this connection are accepted now."""
        return self._lifecycle.is_current(connection.device_id, connection.epoch)

    def heartbeat(self, connection: DeviceConnection, beat: device_pb2.Heartbeat) -> None:
        """Renew the lease, note the load and answer with the next interval."""
        self._handle(HeartbeatReceived(connection.device_id, connection.epoch))
        if not self.is_current(connection):
            return
        connection.last_seen_unix_ms = self._clock.unix_ms()
        if beat.device_unix_ms:
            connection.clock_skew_ms = beat.device_unix_ms - connection.last_seen_unix_ms
        connection.load = beat.load
        connection.engines = {engine.model: engine for engine in beat.engines}
        self._views.set_loads(connection.device_id, convert.model_loads(beat.engines))
        self._views.set_power(
            connection.device_id,
            beat.load.power_w if beat.load.HasField("power_w") else None,
            estimated=beat.load.power_estimated,
            conditions=tuple(beat.load.conditions),
        )
        ack = device_pb2.HeartbeatAck(
            next_interval_ms=self._terms.heartbeat_interval_ms, lease_ms=self._terms.lease_ms
        )
        connection.send(device_pb2.HubFrame(heartbeat_ack=ack))

    def progressed(
        self,
        connection: DeviceConnection,
        engine: inference_pb2.EngineLoad | None,
        *,
        moved: bool,
    ) -> None:
        """The device sent an inference frame: with updates (`moved`), with an engine's load."""
        if moved:
            self._handle(Progressed(connection.device_id, connection.epoch))
        if engine is not None:
            connection.engines[engine.model] = engine
            self._views.set_loads(connection.device_id, convert.model_loads([engine]))

    def model_changed(self, connection: DeviceConnection, report: engine_pb2.ModelReport) -> None:
        """A model of the device loaded, failed or changed."""
        connection.models[report.name] = report
        self._views.set_model(connection.device_id, convert.served_model(report))
        view = self._views.get(connection.device_id)
        places = self._places(connection.models.values())
        if view is not None and view.max_waiting != places:
            self._views.put(replace(view, max_waiting=places))
        _log.info(
            "model_changed",
            device_id=connection.device_id,
            model=report.name,
            state=engine_pb2.ModelState.Name(report.state),
            failure=report.failure,
        )

    def goodbye(self, connection: DeviceConnection) -> None:
        """The device leaves in good order."""
        self._handle(GoodbyeReceived(connection.device_id, connection.epoch))

    def restarts(self, connection: DeviceConnection) -> None:
        """The device takes nothing new, ends after its last request, and comes back."""
        self._handle(RestartAnnounced(connection.device_id, connection.epoch))

    def closed(self, connection: DeviceConnection) -> None:
        """The stream ended, for whatever reason; nothing is routed there from now on."""
        connection.outbox.discard()
        self._open.pop((connection.device_id, connection.epoch), None)
        self._handle(StreamClosed(connection.device_id, connection.epoch))

    def tick(self) -> None:
        """Let leases run out."""
        self._handle(Tick())

    def send(self, device_id: DeviceId, frame: device_pb2.HubFrame) -> int | None:
        """Send on the device's current stream; its epoch, or None when that is impossible."""
        connection = self._current.get(device_id)
        if connection is None or not self.is_current(connection) or not connection.send(frame):
            return None
        return connection.epoch

    def connection_of(self, device_id: DeviceId) -> DeviceConnection | None:
        """The newest connection, kept after its end for its reports."""
        return self._current.get(device_id)

    def state_of(self, device_id: DeviceId) -> DeviceState | None:
        """State in this hub; None when the device was never seen here."""
        return self._lifecycle.state_of(device_id)

    async def drain(self, entry: DeviceEntry) -> DeviceState | None:
        """Let the device finish what runs and take nothing new, at whatever hub it is."""
        if entry.hub and entry.hub != self._config.hub_id:
            await self._registry.drain(entry.device_id)
            return DeviceState.DRAINING
        self._handle(Enrolled(entry.device_id, entry.state, entry.epoch))
        self._handle(DrainRequested(entry.device_id))
        return self.state_of(entry.device_id)

    async def remove(self, device_id: DeviceId) -> None:
        """Revoke the device for good: first durably, then here; other hubs hear of it."""
        await self._registry.revoke(device_id)
        self._handle(Enrolled(device_id))
        self._handle(Removed(device_id))

    def end_all(self) -> None:
        """Tell all devices to come back soon: this hub stops."""
        for connection in self._open.values():
            connection.end(CloseCause.HUB_STOPS)

    def _places(self, models: Iterable[engine_pb2.ModelReport]) -> int:
        slots = max((model.slots for model in models), default=0)
        return math.ceil(self._config.device_waiting_share * slots)

    def _handle(self, event: Event) -> None:
        for effect in self._lifecycle.handle(event, self._clock.monotonic_ms()):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case StateChanged(device_id, old, new, why):
                self._views.set_state(device_id, new)
                if not self._lifecycle.returns(device_id):  # else the next hub drains it for good
                    self._tell(device_id, new)
                _log.info("device_state", device_id=device_id, old=old, new=new, why=why)
                if new is DeviceState.REVOKED:
                    self._let_go(device_id)
            case Close(device_id, epoch, cause):
                connection = self._open.get((device_id, epoch))
                if connection is not None:
                    connection.end(cause)
            case Lost(device_id, epoch):
                self._on_lost(device_id, epoch)
            case Forgotten(device_id):
                _log.info("device_moved_away", device_id=device_id)
                self.roster.forget(device_id)
                self._let_go(device_id)
            case SendDrain(device_id, _):
                drain = device_pb2.Drain(reason="requested by an operator")
                self.send(device_id, device_pb2.HubFrame(drain=drain))

    def _let_go(self, device_id: DeviceId) -> None:
        self._views.remove(device_id)
        self._current.pop(device_id, None)

    def _tell(self, device_id: DeviceId, state: DeviceState) -> None:
        connection = self._current.get(device_id)
        self.roster.note(
            StateReport(
                device_id,
                state,
                self._lifecycle.epoch_of(device_id),
                connection.last_seen_unix_ms if connection else 0,
                connection.capabilities.device_class if connection else "",
            )
        )
