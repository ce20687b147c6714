"""The hub: two ports, its cores and the loops that let time pass for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import grpc
import structlog

from orchestrator.catalogue.store_redis import CatalogueStore
from orchestrator.config import HubConfig
from orchestrator.fleet.decisions_redis import DecisionStore
from orchestrator.fleet.hubs_redis import HubDirectory, HubEntry
from orchestrator.fleet.local_served_redis import LocalServedStore
from orchestrator.fleet.registry import Registry
from orchestrator.fleet.registry_redis import StateError
from orchestrator.fleet.view import DeviceId
from orchestrator.fleet.view_store import ViewStore
from orchestrator.hub.clock import Clock
from orchestrator.hub.device_link import DeviceLinkServicer
from orchestrator.hub.devices import DeviceParts, Devices
from orchestrator.hub.enrolment import EnrolmentParts, EnrolmentServicer
from orchestrator.hub.fleet_service import FleetParts, FleetServicer
from orchestrator.hub.inference import InferenceServicer
from orchestrator.hub.local_served import LocalServed
from orchestrator.hub.model_files import ModelFilesServicer
from orchestrator.hub.model_placement import ModelPlacement
from orchestrator.hub.placement import Placement
from orchestrator.hub.placing import PlacementParts
from orchestrator.hub.presence import Presence
from orchestrator.hub.records import Recorder
from orchestrator.hub.rollouts import Rollouts
from orchestrator.hub.summary import Summaries
from orchestrator.identity.authority import Authority
from orchestrator.identity.cache_users_redis import CacheUsers
from orchestrator.identity.token_store_redis import TokenStore
from orchestrator.rollout.store_redis import RolloutStore
from orchestrator.routing.router import Router
from shoal.tasks import cancelled
from shoal.v1 import (
    device_pb2_grpc,
    enrolment_pb2_grpc,
    fleet_pb2_grpc,
    inference_pb2_grpc,
    models_pb2_grpc,
)
from shoal.wire import SERVER_OPTIONS

_log = structlog.get_logger()

FLUSH_INTERVAL_S = 0.1
# After the state Redis failed; what waits meanwhile is bounded.
FLUSH_RETRY_S = 1.0
STOP_GRACE_S = 0.5
_STOP_MARGIN_S = 5.0


@dataclass(frozen=True, slots=True)
class HubParts:
    """What a hub is built from; `release` frees it (connections) when the hub stops."""

    registry: Registry
    directory: HubDirectory
    decisions: DecisionStore
    local_served: LocalServedStore
    catalogue: CatalogueStore
    rollouts: RolloutStore
    tokens: TokenStore
    authority: Authority
    router: Router
    clock: Clock
    release: Callable[[], Awaitable[None]]
    cache_users: CacheUsers | None = None


@dataclass(frozen=True, slots=True)
class HubAddresses:
    """Where the hub listens, as `host:port` to dial."""

    enrol: str
    link: str


class Hub:
    """One hub. `start` binds its ports and `stop` frees them; the state is rebuilt at start."""

    def __init__(self, config: HubConfig, parts: HubParts) -> None:
        self._config = config
        self._parts = parts
        self._views = ViewStore()
        device_parts = DeviceParts(config, parts.registry, self._views, parts.clock)
        if parts.cache_users is not None:
            device_parts = replace(device_parts, cache_digest=parts.cache_users.digest)
        self._devices = Devices(device_parts, self._on_lost)
        self._recorder = Recorder(parts.decisions)
        self._local_served = LocalServed(parts.local_served, parts.clock.unix_ms)
        self._placement = Placement(
            PlacementParts(config, parts.router, self._views, self._recorder, parts.clock),
            self._devices,
        )
        self._models = ModelPlacement(
            config.hub_id, parts.catalogue, parts.registry, self._devices, parts.clock
        )
        self._rollouts = Rollouts(config.hub_id, parts.rollouts, self._devices, parts.clock)
        self._presence = Presence(parts.directory, parts.registry, self._entry)
        self._servers: list[grpc.aio.Server] = []
        self._loops: list[asyncio.Task[None]] = []
        self._addresses = HubAddresses("", "")

    @property
    def addresses(self) -> HubAddresses:
        """Empty before `start`."""
        return self._addresses

    async def start(self) -> HubAddresses:
        """Take up the registry, listen, and return the bound addresses.

        Raises OSError when a port cannot be bound, StateError when Redis is away.
        """
        await self._devices.roster.restore()
        self._loops = [
            asyncio.create_task(self._tick_forever(), name="hub-tick"),
            asyncio.create_task(self._flush_forever(), name="hub-flush"),
            asyncio.create_task(self._devices.roster.follow(), name="hub-changes"),
            asyncio.create_task(self._models.run(), name="hub-models"),
            asyncio.create_task(self._rollouts.run(), name="hub-rollouts"),
        ]
        enrol_server, link_server = self._build_servers()
        enrol_port = self._bind(enrol_server, self._config.enrol_port, ask_certificate=False)
        link_port = self._bind(link_server, self._config.link_port, ask_certificate=True)
        dial_host = self._config.dial_host
        self._addresses = HubAddresses(f"{dial_host}:{enrol_port}", f"{dial_host}:{link_port}")
        for server in self._servers:
            await server.start()
        announcing = asyncio.create_task(self._presence.announce_forever(), name="hub-presence")
        self._loops.append(announcing)
        _log.info("hub_ready", hub_id=self._config.hub_id, link=self._addresses.link)
        return self._addresses

    def _entry(self) -> HubEntry:
        """This hub as others find it."""
        config, addresses = self._config, self._addresses
        port = addresses.link.rpartition(":")[2]
        inner = f"{config.inner_host or config.dial_host}:{port}"
        num_devices = self._devices.num_connected
        return HubEntry(config.hub_id, inner, addresses.link, addresses.enrol, num_devices)

    async def failure(self) -> BaseException | None:
        """Wait until a loop of the hub ends: its error, or None after `stop`.

        A hub without its loops must not go on; its process is to be replaced.
        """
        done, _ = await asyncio.wait(self._loops, return_when=asyncio.FIRST_COMPLETED)
        loop = done.pop()
        return None if loop.cancelled() else loop.exception()

    async def stop(self) -> None:
        """Tell devices to come back later, end all streams, write what is still unwritten."""
        self._devices.end_all()
        stops = [asyncio.create_task(server.stop(STOP_GRACE_S)) for server in self._servers]
        _, hung = await asyncio.wait(stops, timeout=STOP_GRACE_S + _STOP_MARGIN_S)
        if hung:
            # grpc.aio sometimes misses the end of a cut stream; a hub that stops waits no longer.
            _log.warning("servers_did_not_stop", num_servers=len(hung))
        await cancelled(self._loops)
        try:
            await self._flush()
            await self._presence.withdraw()
        except StateError as error:
            _log.warning("state_not_written_at_stop", error=str(error))
        await self._parts.release()

    def _build_servers(self) -> tuple[grpc.aio.Server, grpc.aio.Server]:
        parts = self._parts
        enrolment = EnrolmentServicer(
            EnrolmentParts(
                parts.authority,
                parts.tokens,
                parts.registry,
                lambda: self._config.fleet_links or [self._addresses.link],
                parts.clock.unix_ms,
                parts.cache_users,
            )
        )
        enrol_server = grpc.aio.server(options=SERVER_OPTIONS)
        # The generated registrations are untyped.
        enrolment_pb2_grpc.add_EnrolmentServicer_to_server(  # type: ignore[no-untyped-call]
            enrolment, enrol_server
        )
        link_server = grpc.aio.server(options=SERVER_OPTIONS)
        enrolment_pb2_grpc.add_RenewalServicer_to_server(  # type: ignore[no-untyped-call]
            enrolment, link_server
        )
        device_pb2_grpc.add_DeviceLinkServicer_to_server(  # type: ignore[no-untyped-call]
            DeviceLinkServicer(
                self._devices, self._placement, self._local_served, self._rollouts.proofs
            ),
            link_server,
        )
        inference_pb2_grpc.add_InferenceServicer_to_server(  # type: ignore[no-untyped-call]
            InferenceServicer(self._placement, self._config.session_queue_frames), link_server
        )
        models_pb2_grpc.add_ModelFilesServicer_to_server(  # type: ignore[no-untyped-call]
            ModelFilesServicer(parts.catalogue, self._devices), link_server
        )
        fleet = FleetParts(
            self._config.hub_id,
            self._devices,
            parts.registry,
            self._views,
            self._placement,
            Summaries(self._config.hub_id, self._views, self._placement, parts.router),
            parts.cache_users,
        )
        fleet_pb2_grpc.add_FleetServicer_to_server(  # type: ignore[no-untyped-call]
            FleetServicer(fleet), link_server
        )
        self._servers = [enrol_server, link_server]
        return enrol_server, link_server

    def _bind(self, server: grpc.aio.Server, port: int, *, ask_certificate: bool) -> int:
        key = (self._config.tls_dir / "tls.key").read_bytes()
        certificate = (self._config.tls_dir / "tls.crt").read_bytes()
        credentials = grpc.ssl_server_credentials(
            [(key, certificate)],
            root_certificates=self._parts.authority.ca_pem.encode() if ask_certificate else None,
            require_client_auth=ask_certificate,
        )
        address = f"{self._config.host}:{port}"
        try:
            bound = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"the hub cannot listen on {address}: {error}") from error
        if bound == 0:
            raise OSError(f"the hub cannot listen on {address}; is the port in use?")
        return int(bound)

    def _on_lost(self, device_id: DeviceId, epoch: int) -> None:
        self._placement.on_lost(device_id, epoch)

    async def _tick_forever(self) -> None:
        """Let leases, deadlines and stalls run out.

        When this process was held up itself, what arrived meanwhile is read first:
        else a pause of the hub would look like the silence of every device.
        """
        period_s = self._config.tick_ms / 1_000
        clock = self._parts.clock
        last_ms = clock.monotonic_ms()
        skipped = False
        while True:
            await asyncio.sleep(period_s)
            now_ms = clock.monotonic_ms()
            held_up = now_ms - last_ms > 4 * self._config.tick_ms
            last_ms = now_ms
            # Never twice in a row: on a machine that is always late leases run out too.
            skipped = held_up and not skipped
            if skipped:
                continue
            self._devices.tick()
            self._placement.tick()

    async def _flush_forever(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            try:
                await self._flush()
            except StateError as error:
                _log.warning("state_write_failed", error=str(error))
                await asyncio.sleep(FLUSH_RETRY_S)

    async def _flush(self) -> None:
        await self._devices.roster.write()
        await self._recorder.flush()
        await self._local_served.flush(self._devices.send)
