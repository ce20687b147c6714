"""The gateway's HTTP application: built once, from a config, in the process that serves it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.catalogue.store_redis import CatalogueStore
from orchestrator.dispatch.cascade.service import Cascades
from orchestrator.dispatch.cloud import CloudBackend
from orchestrator.dispatch.detector import make_screen
from orchestrator.dispatch.dispatcher import Dispatcher
from orchestrator.dispatch.edge import EdgeBackend
from orchestrator.dispatch.hub_finder import DeviceOwners, HubFinder
from orchestrator.dispatch.hub_link import HubLink, TlsFiles
from orchestrator.dispatch.outbound import OutboundGate
from orchestrator.dispatch.spending import Spending
from orchestrator.fleet.cascade_redis import CascadeStore
from orchestrator.fleet.decisions_redis import DecisionStore
from orchestrator.fleet.hubs_redis import HubDirectory
from orchestrator.fleet.local_served_redis import LocalServedStore
from orchestrator.fleet.registry_redis import RedisRegistry, connect
from orchestrator.gateway.admin import Admin, AdminParts
from orchestrator.gateway.auth import Authenticator
from orchestrator.gateway.cascade_admin import CascadeAdmin
from orchestrator.gateway.cascade_metrics import CascadeMetrics
from orchestrator.gateway.catalogue import Catalogue
from orchestrator.gateway.cloud_records import CloudRecords
from orchestrator.gateway.config import GatewayConfig
from orchestrator.gateway.joint_models import with_joint_models
from orchestrator.gateway.metrics import RequestMetrics
from orchestrator.gateway.models import list_models
from orchestrator.gateway.onboarding import onboarding_routes, open_depot
from orchestrator.gateway.rate_limits import RateLimits
from orchestrator.gateway.salt import TenantSalts
from orchestrator.gateway.scrape import Scrape
from orchestrator.gateway.text import GatewayText
from orchestrator.gateway.upgrades import UpgradeRoutes
from orchestrator.gateway.wellknown import ca_sha256, join_info
from orchestrator.identity.key_files import read_private
from orchestrator.identity.key_store_redis import KeyStore
from orchestrator.identity.tenants_redis import TenantStore
from orchestrator.identity.token_store_redis import TokenStore
from orchestrator.rollout.store_redis import RolloutStore
from shoal.errors import ShoalError
from shoal.http.admission import Admission
from shoal.http.application import make_application
from shoal.http.bodies import error_response, json_response
from shoal.http.endpoint import text_routes
from shoal.openai.models import find_in


@dataclass(slots=True)
class Gateway:
    """The parts of one gateway; lives in one event loop, from `start` to `stop`."""

    config: GatewayConfig
    dispatcher: Dispatcher
    finder: HubFinder
    records: CloudRecords
    state: Redis
    app: Starlette

    def start(self) -> None:
        """Begin dialling the hubs."""
        for link in self.dispatcher.edge.links:
            link.start()
        self.finder.start()

    async def stop(self) -> None:
        """Cancel what runs and close every connection."""
        await self.finder.stop()
        for link in self.dispatcher.edge.links:
            await link.stop()
        await self.dispatcher.cloud.close()
        await self.records.close()
        await self.state.aclose()


def build_gateway(config: GatewayConfig) -> Gateway:
    """Wire a gateway; must be called inside the event loop that will serve it.

    The application starts and stops the parts itself (ASGI lifespan).
    """
    ca_pem = config.ca_cert.read_bytes()
    tls = TlsFiles(ca_pem, read_private(config.tls_key), config.tls_cert.read_bytes())
    state = connect(config.state_url)
    edge = EdgeBackend(
        [HubLink(address, tls) for address in config.hub_addresses],
        hub_of=DeviceOwners(RedisRegistry(state)).hub_of,
    )
    finder = HubFinder(edge, HubDirectory(state), lambda address: HubLink(address, tls))
    tenants = TenantStore(state)
    screen = make_screen(config.cloud.detector)
    gate = OutboundGate(tenants, screen)
    cloud = CloudBackend(config.cloud, gate, Spending(tenants, config.cloud))
    dispatcher = Dispatcher(edge, cloud, config.cloud.drafted)
    cascades = Cascades(config.cloud.cascades, dispatcher, CascadeStore(state))
    keys = KeyStore(state)
    decisions = DecisionStore(state)
    local_served = LocalServedStore(state)
    authenticator = Authenticator(keys)
    admission = Admission(config.max_in_flight)
    metrics = RequestMetrics()
    started_unix_s = int(time.time())
    depot = open_depot(config.depot_dir)
    service = GatewayText(
        authenticator=authenticator,
        admission=admission,
        rate_limits=RateLimits(tenants, config.num_gateways),
        dispatcher=dispatcher,
        cascades=cascades,
        salts=TenantSalts(read_private(config.salt_key)),
        cloud_records=CloudRecords(decisions),
        metrics=metrics,
        request_timeout_s=config.request_timeout_s,
    )
    admin = Admin(
        AdminParts(
            authenticator=authenticator,
            dispatcher=dispatcher,
            admission=admission,
            keys=keys,
            tenants=tenants,
            tokens=TokenStore(state, ca_sha256(ca_pem)),
            decisions=decisions,
            local_served=local_served,
            catalogue=Catalogue(CatalogueStore(state), config.models_dir),
            started_unix_s=started_unix_s,
            gateway_url=config.gateway_url,
            script_sha256=depot.script_sha256 if depot else "",
        )
    )
    public = _PublicRoutes(dispatcher, cascades, authenticator, started_unix_s)
    routes = [
        *text_routes(service),
        *public.routes(lambda: join_info(config, ca_pem.decode(), finder.hubs_to_dial())),
        *admin.routes(),
        Scrape(
            authenticator,
            dispatcher,
            admission,
            metrics,
            local_served,
            CascadeMetrics(cascades),
        ).route(),
        *CascadeAdmin(authenticator, cascades).routes(),
        *onboarding_routes(depot),
        *UpgradeRoutes(
            authenticator, edge, depot, RolloutStore(state), CatalogueStore(state)
        ).routes(),
    ]
    gateway = Gateway(
        config, dispatcher, finder, service.cloud_records, state, make_application(routes)
    )
    gateway.app.router.lifespan_context = _lifespan(gateway)
    return gateway


class _PublicRoutes:
    """Models for any key; health and joining for anyone."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        cascades: Cascades,
        authenticator: Authenticator,
        started_unix_s: int,
    ) -> None:
        self._dispatcher = dispatcher
        self._cascades = cascades
        self._authenticator = authenticator
        self._started_unix_s = started_unix_s

    def routes(self, join: Callable[[], dict[str, object]]) -> list[Route]:
        """The paths; `join` tells what a device asks for before it enrols."""

        async def join_handler(_request: Request) -> Response:
            return json_response(join())

        async def healthz(_request: Request) -> Response:
            return json_response({"status": "ok"})

        return [
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/healthz", healthz),
            Route("/readyz", self._readyz),
            Route("/shoal/v1/join", join_handler),
        ]

    async def _models(self, request: Request) -> Response:
        try:
            await self._authenticator.caller(request.headers)
        except ShoalError as error:
            return error_response(error)
        return json_response({"object": "list", "data": self._listed()})

    async def _model(self, request: Request) -> Response:
        try:
            await self._authenticator.caller(request.headers)
            name = request.path_params["name"]
            return json_response(find_in(self._listed(), name))
        except ShoalError as error:
            return error_response(error)

    def _listed(self) -> list[dict[str, Any]]:
        models = list_models(self._dispatcher, self._started_unix_s)
        return with_joint_models(models, self._dispatcher.drafted.values(), self._cascades)

    async def _readyz(self, _request: Request) -> Response:
        connected = self._dispatcher.edge.connected
        ready_devices = sum(s.ready_devices for s in self._dispatcher.edge.summaries())
        body = {"ready": connected, "hub_connected": connected, "ready_devices": ready_devices}
        return json_response(body, 200 if connected else 503)


def _lifespan(gateway: Gateway) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        gateway.start()
        try:
            yield
        finally:
            await gateway.stop()

    return lifespan
