"""Rollouts of agents' versions under `/shoal/v1/rollouts`; the hubs carry them on."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.catalogue.store_redis import CatalogueStore
from orchestrator.dispatch.edge import EdgeBackend
from orchestrator.fleet.view import DeviceId
from orchestrator.gateway.auth import Authenticator
from orchestrator.gateway.devices import list_devices
from orchestrator.gateway.state import state_calls
from orchestrator.rollout.model import Rollout, Target
from orchestrator.rollout.selection import batch_size, select
from orchestrator.rollout.store_redis import RolloutStore
from shoal.errors import Reason, ShoalError, invalid
from shoal.http.bodies import error_response, json_response, read_body
from shoal.onboarding.depot import Depot
from shoal.onboarding.releases import Release, find_release, list_releases
from shoal.openai.body import parse_body
from shoal.openai.fields import Fields

# Loading and measuring a model of a few GB from an SD card.
_READY_WITHIN_S = 300
_DRAIN_WITHIN_S = 60
_MAX_S = 3_600

Handler = Callable[[Request], Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class UpgradeRoutes:
    """Handlers; each needs an admin key. `depot` None: there is nothing to upgrade to."""

    authenticator: Authenticator
    edge: EdgeBackend
    depot: Depot | None
    store: RolloutStore
    catalogue: CatalogueStore

    def routes(self) -> list[Route]:
        """The paths."""
        return [
            Route("/shoal/v1/releases", self._answer(self._releases)),
            Route("/shoal/v1/rollouts", self._answer(self._begin), methods=["POST"]),
            Route("/shoal/v1/rollouts/last", self._answer(self._last)),
            Route("/shoal/v1/rollouts/last/cancel", self._answer(self._cancel), methods=["POST"]),
        ]

    def _answer(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                with state_calls():
                    await self.authenticator.admin(request.headers)
                    return json_response(await handler(request))
            except ShoalError as error:
                return error_response(error)

        return answer

    async def _releases(self, _request: Request) -> Mapping[str, Any]:
        listed = [
            {"version": each.version, "release": each.release, "wheel_sha256": each.wheel.sha256}
            for each in (list_releases(self.depot) if self.depot else [])
        ]
        return {"releases": listed}

    async def _begin(self, request: Request) -> Mapping[str, Any]:
        body = await read_body(request)
        fields = Fields(parse_body(body) if body.strip() else {})
        release = self._release(fields.text("version") or "")
        devices = await list_devices(self.edge)
        found = await self.catalogue.labels_of([DeviceId(each["id"]) for each in devices])
        labels = {
            each["id"]: {**each["capabilities"]["labels"], **owners}
            for each, owners in zip(devices, found, strict=True)
        }
        selector = fields.text("selector") or "all"
        selected = select(devices, selector, labels)
        if not selected:
            message = f"No device is selected by {selector[:200]!r}."
            raise ShoalError(Reason.MODEL_NOT_FOUND, message, param="selector")
        rollout = Rollout(
            id=uuid.uuid4().hex[:12],
            version=release.version,
            release=release.release,
            files=tuple((file.name, file.sha256) for file in release.files),
            batch_size=batch_size(fields.text("batch") or "10%", len(selected)),
            max_failures=fields.integer("max_failures", 0, 10**6) or 0,
            ready_within_s=fields.integer("ready_within_s", 10, _MAX_S) or _READY_WITHIN_S,
            drain_within_s=fields.integer("drain_within_s", 1, _MAX_S) or _DRAIN_WITHIN_S,
            started_unix_ms=time.time_ns() // 10**6,
        )
        targets = {
            DeviceId(each["id"]): Target(DeviceId(each["id"]), each["name"], position)
            for position, each in enumerate(selected)
        }
        if not await self.store.begin(rollout, targets.values()):
            raise invalid(
                "rollout",
                "Another rollout is running. Wait for its end, or end it after its batch with "
                "`shoal agents upgrade --cancel`.",
            )
        return _shown(rollout, targets)

    def _release(self, version: str) -> Release:
        release = find_release(self.depot, version) if self.depot else None
        if release is None:
            there = (
                ", ".join(each.version for each in list_releases(self.depot)) if self.depot else ""
            )
            raise invalid(
                "version",
                f"The fleet has no wheel of version {version[:50]!a} for devices; it has: "
                f"{there or 'none'}. Put it into depot/releases of the orchestrator's SHOAL_HOME.",
            )
        return release

    async def _last(self, _request: Request) -> Mapping[str, Any]:
        return _shown(await self._known(), await self.store.targets())

    async def _cancel(self, _request: Request) -> Mapping[str, Any]:
        cancelled = replace(await self._known(), cancelled=True)
        await self.store.cancel(cancelled.id)
        return _shown(cancelled, await self.store.targets())

    async def _known(self) -> Rollout:
        rollout = await self.store.last()
        if rollout is None:
            raise ShoalError(Reason.MODEL_NOT_FOUND, "There was no rollout.", param="rollout")
        return rollout


def _shown(rollout: Rollout, targets: Mapping[DeviceId, Target]) -> Mapping[str, Any]:
    ordered = sorted(targets.values(), key=lambda each: each.position)
    return {
        "id": rollout.id,
        "version": rollout.version,
        "release": rollout.release,
        "outcome": rollout.outcome,
        "cancelled": rollout.cancelled,
        "batch_size": rollout.batch_size,
        "started_unix_ms": rollout.started_unix_ms,
        "ended_unix_ms": rollout.ended_unix_ms,
        "devices": [{"device": t.name, "phase": t.phase, "why": t.why} for t in ordered],
    }
