"""From a request to a running generation: plan the tier, start, and move on once if it is full."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.dispatch.backend import Backend, Generation, has_output
from orchestrator.dispatch.cloud import CloudBackend
from orchestrator.dispatch.edge import EdgeBackend
from orchestrator.dispatch.plan import ModelPresence, TierPlan, plan_tiers
from shoal.errors import Reason, ShoalError
from shoal.v1 import inference_pb2 as pb

_PRIVACY_NAMES = {
    pb.PRIVACY_LOCAL_ONLY: "local_only",
    pb.PRIVACY_LOCAL_PREFERRED: "local_preferred",
}
# Failures of one tier that say nothing against another.
_TRY_NEXT_TIER = frozenset(
    {
        Reason.OVERLOADED,
        Reason.NO_DEVICE,
        Reason.DEVICE_LOST,
        Reason.ENGINE_CRASHED,
        Reason.DRAINING,
        Reason.SLO_UNREACHABLE,
        Reason.UPSTREAM,
    }
)


class Dispatcher:
    """Knows both tiers; starts each request on the one its plan names first."""

    def __init__(self, edge: EdgeBackend, cloud: CloudBackend) -> None:
        self.edge = edge
        self.cloud = cloud

    def presence(self, model: str) -> ModelPresence:
        """What hubs and cloud configuration say of a model now."""
        entries = [m for s in self.edge.summaries() for m in s.models if m.name == model]
        route = self.cloud.routes.get(model)
        sizes = [entry.num_parameters for entry in entries]
        return ModelPresence(
            num_parameters=max(sizes, default=route.model.num_parameters if route else 0),
            on_edge=bool(entries),
            ready_devices=sum(entry.ready_devices for entry in entries),
            in_cloud=route is not None,
        )

    def plan(self, request: pb.GenerateRequest) -> TierPlan:
        """See `plan_tiers`."""
        hints = request.hints
        return plan_tiers(
            request.model,
            self.presence(request.model),
            privacy=_PRIVACY_NAMES.get(hints.privacy, ""),
            pinned_to_device=bool(hints.device or hints.device_class),
        )

    def start(self, request: pb.GenerateRequest) -> Generation:
        """Begin; raises `ShoalError` when no tier is allowed."""
        plan = self.plan(request)
        return TieredGeneration([self._backend(tier) for tier in plan.tiers], request, plan.reason)

    def _backend(self, tier: str) -> Backend:
        return self.cloud if tier == "cloud" else self.edge


class TieredGeneration:
    """A sequence that goes on to the next tier when one fails before any output."""

    def __init__(
        self, backends: Sequence[Backend], request: pb.GenerateRequest, reason: str
    ) -> None:
        self._request = request
        self._reason = reason
        self._rest = list(backends[1:])
        self._current: Generation = backends[0].start(request)
        self._has_output = False
        self._tiers_failed = 0

    @property
    def tier(self) -> str:
        """See `Generation.tier`."""
        return self._current.tier

    async def take(self) -> Sequence[pb.SequenceUpdate]:
        """See `Generation.take`."""
        while True:
            updates = await self._current.take()
            if self._current.tier == "cloud":
                self._explain(updates)
            self._has_output = self._has_output or has_output(updates)
            if self._has_output or not self._rest or not _worth_another(updates[-1]):
                return updates
            self._tiers_failed += 1
            self._reason = f"The {self.tier} could not serve it: {updates[-1].failed.message}."
            self._current = self._rest.pop(0).start(self._request)

    def cancel(self) -> None:
        """See `Generation.cancel`."""
        self._current.cancel()

    def _explain(self, updates: Sequence[pb.SequenceUpdate]) -> None:
        """Put the tier's reason before the endpoint's, and count the edge that was tried before.

        The edge's hub gives its own reason.
        """
        for update in updates:
            if update.HasField("placed"):
                update.placed.attempt += self._tiers_failed
                update.placed.reason = f"{self._reason} {update.placed.reason}"


def _worth_another(update: pb.SequenceUpdate) -> bool:
    return (
        update.HasField("failed") and ShoalError.from_wire(update.failed).reason in _TRY_NEXT_TIER
    )
