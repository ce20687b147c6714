"""The local API's paths."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent.local_api.service import LocalText
from shoal.errors import ShoalError
from shoal.http.application import make_application
from shoal.http.bodies import error_response, json_response
from shoal.http.endpoint import text_routes
from shoal.openai.models import find_in, model_object
from shoal.v1 import engine_pb2


def local_application(service: LocalText) -> Starlette:
    """Chat, completions, models, health."""
    models = _Models(service)
    routes = [
        *text_routes(service),
        Route("/v1/models", models.list),
        Route("/v1/models/{name:path}", models.one),
        Route("/healthz", models.health),
    ]
    return make_application(routes)


class _Models:
    """What this device serves now."""

    def __init__(self, service: LocalText) -> None:
        self._service = service
        self._started_unix_s = int(time.time())

    async def list(self, request: Request) -> Response:
        """`GET /v1/models`."""
        try:
            await self._service.tenant(request.headers)
        except ShoalError as error:
            return error_response(error)
        return json_response({"object": "list", "data": list(self._objects())})

    async def one(self, request: Request) -> Response:
        """`GET /v1/models/NAME`."""
        try:
            await self._service.tenant(request.headers)
            return json_response(find_in(list(self._objects()), request.path_params["name"]))
        except ShoalError as error:
            return error_response(error)

    async def health(self, _request: Request) -> Response:
        """For anyone who reaches the port: no names, no counts."""
        return json_response({"status": "ok"})

    def _objects(self) -> Iterator[dict[str, Any]]:
        reports = sorted(self._service.requests.reports(), key=lambda report: report.name)
        for report in reports:
            if report.state != engine_pb2.MODEL_STATE_READY:
                continue
            load = report.load
            model = model_object(report.name, self._started_unix_s, "shoal")
            model["shoal"] |= {
                "tiers": ["edge"],
                "num_parameters": report.num_parameters,
                "context_tokens": report.context_tokens,
                "ready_devices": 1,
                "free_slots": max(0, report.slots - load.running),
                "device_classes": [self._service.requests.placed.device_class],
            }
            yield model
