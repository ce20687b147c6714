"""Cascades through the admin API: their policies, what is known, calibration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.dispatch.cascade.calibration import calibrate, share_for_budget
from orchestrator.dispatch.cascade.service import Cascades
from orchestrator.gateway.auth import Authenticator
from orchestrator.gateway.state import state_calls
from shoal.errors import Reason, ShoalError, invalid
from shoal.http.bodies import error_response, json_response, read_body
from shoal.openai.body import parse_body
from shoal.openai.fields import Fields

_NANOS = 10**9
_MAX_AMOUNT = 1e15
_TARGETS = ("share", "money_per_day", "tokens_per_day")
_KNOWN = frozenset({"policy", *_TARGETS, "dry_run"})

Handler = Callable[[Request], Awaitable[Mapping[str, Any]]]


class CascadeAdmin:
    """Handlers; each needs an admin key."""

    def __init__(self, authenticator: Authenticator, cascades: Cascades) -> None:
        self._authenticator = authenticator
        self._cascades = cascades

    def routes(self) -> list[Route]:
        """The paths."""
        path = "/shoal/v1/tenants/{tenant}/cascades"
        return [
            self._route(path, self.show, "GET"),
            self._route(f"{path}/calibrate", self.calibrate, "POST"),
        ]

    def _route(self, path: str, handler: Handler, method: str) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                with state_calls():
                    await self._authenticator.admin(request.headers)
                    return json_response(await handler(request))
            except ShoalError as error:
                return error_response(error)

        return Route(path, endpoint, methods=[method])

    async def show(self, request: Request) -> Mapping[str, Any]:
        """Every policy with the tenant's threshold and samples."""
        tenant = request.path_params["tenant"]
        thresholds = await self._cascades.thresholds(tenant)
        rows = []
        for policy in self._cascades.policies.values():
            samples = await self._cascades.samples(tenant, policy.name)
            found = thresholds.get(policy.name)
            rows.append(
                {
                    **asdict(policy),
                    "threshold": found["threshold"] if found else policy.threshold,
                    "calibration": found,
                    "samples": len(samples),
                    "whole_samples": sum(each.whole for each in samples),
                    "escalated_share": (
                        sum(each.escalated for each in samples) / len(samples) if samples else None
                    ),
                }
            )
        return {"tenant": tenant, "cascades": rows}

    async def calibrate(self, request: Request) -> Mapping[str, Any]:
        """Set the threshold to a target share, or to what a budget a day allows."""
        tenant = request.path_params["tenant"]
        fields = Fields(parse_body(await read_body(request)))
        for name in fields.names():
            if name not in _KNOWN:
                raise invalid(name[:60], f"{name[:60]!a} is unknown. Known: {sorted(_KNOWN)}.")
        policy = fields.text("policy") or "auto"
        if policy not in self._cascades.policies:
            known = ", ".join(sorted(self._cascades.policies))
            raise ShoalError(
                Reason.MODEL_NOT_FOUND,
                f"There is no cascade {policy[:60]!a}. Known: {known}.",
                param="policy",
            )
        targets = {name: fields.number(name, 0.0, _MAX_AMOUNT) for name in _TARGETS}
        given = {name: value for name, value in targets.items() if value is not None}
        if len(given) != 1:
            raise invalid("share", f"One of {', '.join(_TARGETS)} is needed.")
        samples = await self._cascades.samples(tenant, policy)
        ((name, value),) = given.items()
        if name == "share":
            if value > 1:
                raise invalid("share", "'share' must be from 0 to 1.")
            share = value
        else:
            money = name == "money_per_day"
            per_day = value * _NANOS if money else value
            share = share_for_budget(samples, per_day, money=money)
        found = calibrate(samples, share)
        if not fields.flag("dry_run"):
            await self._cascades.calibrated(tenant, policy, found)
        return {"tenant": tenant, "policy": policy, **asdict(found)}
