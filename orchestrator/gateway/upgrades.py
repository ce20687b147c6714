"""Orders to devices to change their version, under `/shoal/v1/devices/{device}/upgrade`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.dispatch.edge import EdgeBackend
from orchestrator.dispatch.hub_link import HubLink
from orchestrator.gateway.auth import Authenticator
from orchestrator.gateway.devices import change_device
from orchestrator.gateway.state import state_calls
from shoal.errors import Reason, ShoalError, invalid
from shoal.http.bodies import error_response, json_response, read_body
from shoal.onboarding.depot import Depot
from shoal.onboarding.releases import find_release, list_releases
from shoal.openai.body import parse_body
from shoal.openai.fields import Fields
from shoal.v1 import device_pb2, fleet_pb2

_TIMEOUT_S = 5.0
# Loading and measuring a model of a few GB from an SD card.
_READY_WITHIN_S = 300
_DRAIN_WITHIN_S = 60
_MAX_S = 3_600


@dataclass(frozen=True, slots=True)
class UpgradeRoutes:
    """Handlers; each needs an admin key. `depot` None: there is nothing to upgrade to."""

    authenticator: Authenticator
    edge: EdgeBackend
    depot: Depot | None

    def routes(self) -> list[Route]:
        """The paths."""
        return [
            Route("/shoal/v1/releases", self._releases),
            Route("/shoal/v1/devices/{device}/upgrade", self._upgrade, methods=["POST"]),
            Route("/shoal/v1/devices/{device}/upgrade/verdict", self._judge, methods=["POST"]),
        ]

    async def _releases(self, request: Request) -> Response:
        try:
            await self._admin(request)
        except ShoalError as error:
            return error_response(error)
        releases = list_releases(self.depot) if self.depot else []
        listed = [
            {"version": each.version, "release": each.release, "wheel_sha256": each.wheel.sha256}
            for each in releases
        ]
        return json_response({"releases": listed})

    async def _upgrade(self, request: Request) -> Response:
        try:
            await self._admin(request)
            return json_response(await self._order(request))
        except ShoalError as error:
            return error_response(error)

    async def _order(self, request: Request) -> Mapping[str, Any]:
        body = await read_body(request)
        fields = Fields(parse_body(body) if body.strip() else {})
        version = fields.text("version") or ""
        release = find_release(self.depot, version) if self.depot else None
        if release is None:
            raise invalid(
                "version", f"The fleet has no wheel of version {version[:50]!a} for devices."
            )
        order = device_pb2.Upgrade(
            version=release.version,
            files=[device_pb2.UpgradeFile(name=f.name, sha256=f.sha256) for f in release.files],
            ready_within_s=fields.integer("ready_within_s", 10, _MAX_S) or _READY_WITHIN_S,
            drain_within_s=fields.integer("drain_within_s", 1, _MAX_S) or _DRAIN_WITHIN_S,
        )

        async def call(link: HubLink, named: fleet_pb2.DeviceRequest) -> fleet_pb2.DeviceReply:
            message = fleet_pb2.UpgradeDeviceRequest(device=named.device, upgrade=order)
            reply: fleet_pb2.DeviceReply = await link.fleet.UpgradeDevice(
                message, timeout=_TIMEOUT_S
            )
            return reply

        reply = await change_device(self.edge, request.path_params["device"], call)
        return {**reply, "version": release.version, "release": release.release}

    async def _judge(self, request: Request) -> Response:
        try:
            await self._admin(request)
            fields = Fields(parse_body(await read_body(request)))
            verdict = device_pb2.UpgradeVerdict(
                release=fields.text("release") or "",
                keep=fields.flag("keep"),
                reason=fields.text("reason") or "",
            )

            async def call(link: HubLink, named: fleet_pb2.DeviceRequest) -> fleet_pb2.DeviceReply:
                message = fleet_pb2.JudgeUpgradeRequest(device=named.device, verdict=verdict)
                reply: fleet_pb2.DeviceReply = await link.fleet.JudgeUpgrade(
                    message, timeout=_TIMEOUT_S
                )
                return reply

            device = request.path_params["device"]
            return json_response(await change_device(self.edge, device, call))
        except ShoalError as error:
            return error_response(error)

    async def _admin(self, request: Request) -> None:
        with state_calls():
            await self.authenticator.admin(request.headers)
        if self.depot is None:
            raise ShoalError(Reason.NO_DEVICE, "This gateway has no files for devices.")
