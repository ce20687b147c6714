"""The admin API under `/shoal/v1`: devices, keys, join tokens, decisions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.dispatch.dispatcher import Dispatcher
from orchestrator.fleet.decisions_redis import DecisionStore
from orchestrator.fleet.local_served_redis import LocalServedStore
from orchestrator.gateway.auth import Authenticator
from orchestrator.gateway.catalogue import Catalogue
from orchestrator.gateway.devices import change_device, drain_device, list_devices, remove_device
from orchestrator.gateway.keys import create_key, list_keys, revoke_key
from orchestrator.gateway.local_served import add_local_served
from orchestrator.gateway.models import list_models
from orchestrator.gateway.state import state_calls
from orchestrator.gateway.tenants import list_tenants, put_tenant, show_tenant
from orchestrator.identity.key_store_redis import KeyStore
from orchestrator.identity.tenants_redis import TenantStore
from orchestrator.identity.token_store_redis import DEFAULT_TTL_S, MAX_TTL_S, TokenStore
from shoal import __version__
from shoal.errors import Reason, ShoalError
from shoal.http.admission import Admission
from shoal.http.bodies import error_response, json_response, read_body
from shoal.onboarding.lines import install_line, verified_line
from shoal.openai.body import parse_body
from shoal.openai.fields import Fields

# A record is written just after the response's end; who asks at once waits for it.
_RECORD_WAIT_S = 1.0
_RECORD_POLL_S = 0.05
_MAX_LISTED = 1_000

Handler = Callable[[Request], Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class AdminParts:
    """What the admin API works on."""

    authenticator: Authenticator
    dispatcher: Dispatcher
    admission: Admission
    keys: KeyStore
    tenants: TenantStore
    tokens: TokenStore
    decisions: DecisionStore
    local_served: LocalServedStore
    catalogue: Catalogue
    started_unix_s: int
    # For the lines that make a device a member; no hash: no script is served.
    gateway_url: str
    script_sha256: str


class Admin:
    """Handlers of the admin API; each needs an admin key."""

    def __init__(self, parts: AdminParts) -> None:
        self._parts = parts

    def routes(self) -> list[Route]:
        """All paths of the API."""
        return [
            self._route("/shoal/v1/status", self.status, "GET"),
            self._route("/shoal/v1/devices", self.devices, "GET"),
            self._route("/shoal/v1/devices/{device}/drain", self.drain, "POST"),
            self._route("/shoal/v1/devices/{device}/remove", self.remove, "POST"),
            self._route("/shoal/v1/keys", self.create_key, "POST"),
            self._route("/shoal/v1/keys", self.keys, "GET"),
            self._route("/shoal/v1/keys/{key}/revoke", self.revoke_key, "POST"),
            self._route("/shoal/v1/tenants", self.tenants, "GET"),
            self._route("/shoal/v1/tenants/{tenant}", self.tenant, "GET"),
            self._route("/shoal/v1/tenants/{tenant}", self.set_tenant, "PUT"),
            self._route("/shoal/v1/tokens", self.create_token, "POST"),
            self._route("/shoal/v1/decisions", self.decisions, "GET"),
            self._route("/shoal/v1/decisions/{request_id}", self.decision, "GET"),
            *self._model_routes(),
        ]

    def _model_routes(self) -> list[Route]:
        models = self._parts.catalogue

        async def body(request: Request) -> Mapping[str, Any]:
            text = await read_body(request)
            return parse_body(text) if text.strip() else {}

        async def label(request: Request) -> Mapping[str, Any]:
            known = await list_devices(self._parts.dispatcher.edge)
            named = request.path_params["device"]
            for each in known:
                if named in (each["id"], each["name"]):
                    return await models.label(each["id"], await body(request))
            raise ShoalError(Reason.MODEL_NOT_FOUND, "There is no such device.", param="device")

        def name(request: Request) -> str:
            return str(request.path_params["name"])

        async def add(request: Request) -> Mapping[str, Any]:
            return await models.add(await _fields(request))

        async def deploy(request: Request) -> Mapping[str, Any]:
            return await models.deploy(await _fields(request))

        root = "/shoal/v1"
        catalogue, deployments = f"{root}/catalogue", f"{root}/deployments"
        return [
            self._route(catalogue, add, "POST"),
            self._route(catalogue, lambda _: models.variants(), "GET"),
            self._route(f"{catalogue}/{{name}}/remove", lambda r: models.remove(name(r)), "POST"),
            self._route(f"{catalogue}/{{name}}/retry", lambda r: models.retry(name(r)), "POST"),
            self._route(f"{root}/intakes/{{name}}", lambda r: models.intake(name(r)), "GET"),
            self._route(deployments, deploy, "POST"),
            self._route(
                f"{deployments}/{{name}}/remove", lambda r: models.undeploy(name(r)), "POST"
            ),
            self._route(f"{root}/placements", lambda _: models.placements(), "GET"),
            self._route(f"{root}/devices/{{device}}/labels", label, "POST"),
        ]

    def _route(self, path: str, handler: Handler, method: str) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                await self._parts.authenticator.admin(request.headers)
                with state_calls():
                    return json_response(await handler(request))
            except ShoalError as error:
                return error_response(error)

        return Route(path, endpoint, methods=[method])

    async def status(self, _request: Request) -> Mapping[str, Any]:
        """The gateway, its hubs and the models they serve."""
        parts = self._parts
        summaries = parts.dispatcher.edge.summaries()
        return {
            "version": __version__,
            "started_unix_s": parts.started_unix_s,
            "in_flight": parts.admission.in_flight,
            "max_in_flight": parts.admission.max_in_flight,
            # Of all gateways: what the hubs hold on devices.
            "running": sum(summary.running for summary in summaries),
            "waiting": sum(summary.waiting for summary in summaries),
            "hubs": [
                {
                    "address": link.address,
                    "connected": link.connected,
                    "hub_id": link.summary.hub_id if link.summary else "",
                    # Why the hub suspects itself; empty: it does not.
                    "condition": link.summary.condition if link.summary else "",
                    "ready_devices": link.summary.ready_devices if link.summary else 0,
                    "running": link.summary.running if link.summary else 0,
                    "waiting": link.summary.waiting if link.summary else 0,
                }
                for link in parts.dispatcher.edge.links
            ],
            "models": list_models(parts.dispatcher, parts.started_unix_s),
        }

    async def devices(self, _request: Request) -> Mapping[str, Any]:
        """Every device of the fleet."""
        devices = await list_devices(self._parts.dispatcher.edge)
        await add_local_served(self._parts.local_served, devices)
        await self._parts.catalogue.add_labels(devices)
        return {"devices": devices}

    async def drain(self, request: Request) -> Mapping[str, Any]:
        """Drain one device, by id or name."""
        device = request.path_params["device"]
        return await change_device(self._parts.dispatcher.edge, device, drain_device)

    async def remove(self, request: Request) -> Mapping[str, Any]:
        """Remove one device, by id or name."""
        device = request.path_params["device"]
        return await change_device(self._parts.dispatcher.edge, device, remove_device)

    async def create_key(self, request: Request) -> Mapping[str, Any]:
        """Make an API key; its text is in this answer and nowhere else."""
        return await create_key(self._parts.keys, self._parts.tenants, await _fields(request))

    async def keys(self, _request: Request) -> Mapping[str, Any]:
        """Every key by its id."""
        return await list_keys(self._parts.keys)

    async def revoke_key(self, request: Request) -> Mapping[str, Any]:
        """Refuse one key from now on."""
        parts = self._parts
        caller = await parts.authenticator.admin(request.headers)
        return await revoke_key(parts.keys, parts.authenticator, caller, request.path_params["key"])

    async def tenants(self, _request: Request) -> Mapping[str, Any]:
        """Every tenant's policy and spending."""
        return {"tenants": await list_tenants(self._parts.tenants)}

    async def tenant(self, request: Request) -> Mapping[str, Any]:
        """One tenant's policy and spending."""
        return await show_tenant(self._parts.tenants, request.path_params["tenant"])

    async def set_tenant(self, request: Request) -> Mapping[str, Any]:
        """Set one tenant's policy."""
        fields = await _fields(request)
        return await put_tenant(self._parts.tenants, request.path_params["tenant"], fields)

    async def create_token(self, request: Request) -> Mapping[str, Any]:
        """Make a single-use join token, with the lines to paste on a device."""
        fields = await _fields(request)
        ttl_s = fields.integer("ttl_s", 1, MAX_TTL_S) or DEFAULT_TTL_S
        token = await self._parts.tokens.create(ttl_s)
        url, script_sha256 = self._parts.gateway_url, self._parts.script_sha256
        answer = {"token": token, "ttl_s": ttl_s, "gateway_url": url}
        if not script_sha256:
            return answer
        return answer | {
            "install": install_line(url, token),
            "install_verified": verified_line(url, token, script_sha256),
            "script_sha256": script_sha256,
        }

    async def decision(self, request: Request) -> Mapping[str, Any]:
        """One request's decision record."""
        request_id = request.path_params["request_id"]
        waited_s = 0.0
        text = await self._parts.decisions.get(request_id)
        while text is None and waited_s < _RECORD_WAIT_S:
            await asyncio.sleep(_RECORD_POLL_S)
            waited_s += _RECORD_POLL_S
            text = await self._parts.decisions.get(request_id)
        if text is None:
            raise ShoalError(
                Reason.MODEL_NOT_FOUND,
                f"There is no decision record of {request_id[:100]!a}. Records are kept for a day.",
                param="request_id",
            )
        record: dict[str, Any] = json.loads(text)
        return record

    async def decisions(self, request: Request) -> Mapping[str, Any]:
        """The newest records, of all devices or of `device` (id or name); at most `limit`."""
        query = request.query_params
        limit_text = query.get("limit", "50")
        limit = int(limit_text) if limit_text.isdecimal() and len(limit_text) < 10 else 0
        limit = max(1, min(_MAX_LISTED, limit))
        device = query.get("device", "")
        if device:
            device = await self._device_id(device)
        texts = await self._parts.decisions.newest(limit, device)
        return {"decisions": [json.loads(text) for text in texts]}

    async def _device_id(self, device: str) -> str:
        for known in await list_devices(self._parts.dispatcher.edge):
            if device in (known["id"], known["name"]):
                return str(known["id"])
        return device


async def _fields(request: Request) -> Fields:
    body = await read_body(request)
    return Fields(parse_body(body) if body.strip() else {})
