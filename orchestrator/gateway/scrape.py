"""`GET /metrics`: the text that Prometheus asks for."""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.dispatch.dispatcher import Dispatcher
from orchestrator.fleet.local_served_redis import LocalServedStore
from orchestrator.gateway.auth import Authenticator
from orchestrator.gateway.cascade_metrics import CascadeMetrics
from orchestrator.gateway.devices import list_devices
from orchestrator.gateway.fleet_metrics import FleetMetrics
from orchestrator.gateway.local_served import add_local_served
from orchestrator.gateway.metrics import RequestMetrics
from orchestrator.gateway.state import state_calls
from shoal.errors import ShoalError
from shoal.http.admission import Admission
from shoal.http.bodies import error_response

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Scrape:
    """What a scrape looks at; it needs an admin key, since it names devices."""

    authenticator: Authenticator
    dispatcher: Dispatcher
    admission: Admission
    metrics: RequestMetrics
    local_served: LocalServedStore
    cascades: CascadeMetrics

    def route(self) -> Route:
        """The path."""
        return Route("/metrics", self._handle, methods=["GET"])

    async def _handle(self, request: Request) -> Response:
        try:
            with state_calls():
                await self.authenticator.admin(request.headers)
        except ShoalError as error:
            return error_response(error)
        try:
            devices = await list_devices(self.dispatcher.edge)
            await add_local_served(self.local_served, devices)
        except ShoalError as error:
            # The gateway's own figures matter most when the fleet is away.
            _log.info("scrape_without_devices", cause=error.message)
            devices = None
        self.metrics.in_flight.set(self.admission.in_flight)
        text = self.metrics.render(FleetMetrics(devices), self.cascades)
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})
