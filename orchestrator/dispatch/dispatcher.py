"""From a request to a running generation: plan the tier, start, and move on once if it is full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from orchestrator.dispatch.backend import Account, Generation, has_output
from orchestrator.dispatch.cloud import CloudBackend
from orchestrator.dispatch.edge import EdgeBackend
from orchestrator.dispatch.plan import ModelPresence, TierPlan, plan_tiers
from orchestrator.dispatch.ruling import Ruling
from orchestrator.dispatch.speculative import DraftedGeneration, by_name
from orchestrator.dispatch.speculative_models import DraftedModel
from shoal.errors import Reason, ShoalError
from shoal.v1 import inference_pb2 as pb

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
        Reason.BUDGET_EXCEEDED,
        # The tenant's policy became stricter between the plan and the gate.
        Reason.PERMISSION_DENIED,
    }
)
# Refusals to ask a tier at all: what the tier before said is more use to the client.
_NOT_ASKED = frozenset({Reason.BUDGET_EXCEEDED, Reason.PERMISSION_DENIED})

Start = Callable[[], Generation]


class Dispatcher:
    """Knows both tiers; starts each request on the one its plan names first."""

    def __init__(
        self, edge: EdgeBackend, cloud: CloudBackend, drafted: Sequence[DraftedModel] = ()
    ) -> None:
        self.edge = edge
        self.cloud = cloud
        self.drafted = by_name(drafted)

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
            on_own_node=self.cloud.has_own(model),
        )

    def classes(self, model: str) -> frozenset[str]:
        """Classes of the devices that serve the model now."""
        entries = [m for s in self.edge.summaries() for m in s.models if m.name == model]
        return frozenset(name for entry in entries for name in entry.device_classes)

    async def rule(self, request: pb.GenerateRequest, *, fresh: bool = False) -> Ruling:
        """How far the request may travel; noted in its hints for every hop below.

        `fresh`: by the policy as it is now, also for a model that the cloud does not serve.
        """
        # Where the ruling decides over the tier, it is by the policy as it is now.
        return await self.cloud.gate.rule(
            request, fresh=fresh or request.model in self.cloud.routes
        )

    def plan(self, request: pb.GenerateRequest, ruling: Ruling) -> TierPlan:
        """See `plan_tiers`."""
        hints, presence = request.hints, self.presence(request.model)
        if request.model in self.drafted:
            # A cloud node answers for it, though no endpoint may serve it.
            presence = replace(presence, in_cloud=True)
        return plan_tiers(
            request.model,
            presence,
            ruling=ruling,
            pinned_to_device=bool(hints.device or hints.device_class),
        )

    def start(self, request: pb.GenerateRequest, ruling: Ruling) -> Generation:
        """Begin; `ruling` is that of `rule`. Raises `ShoalError` when no tier is allowed."""
        drafted = self.drafted.get(request.model)
        if drafted is not None and ruling.may_leave:
            return self.start_drafted(request, drafted)
        plan = self.plan(request, ruling)
        starts = [self._start(tier, request, is_last=tier == plan.tiers[-1]) for tier in plan.tiers]
        return TieredGeneration(starts, request, plan.reason)

    def start_drafted(
        self, request: pb.GenerateRequest, drafted: DraftedModel, *, patient: bool = True
    ) -> Generation:
        """Begin on a device that drafts; an endpoint of the same name is next.

        The gate and the tenant's budgets have the last word. Not `patient`: see `CloudBackend`.
        """
        starts: list[Start] = [partial(DraftedGeneration, self.edge, self.cloud, request, drafted)]
        reason = f"Devices draft it with '{drafted.draft}'."
        hints = request.hints
        if request.model in self.cloud.routes and not (hints.device or hints.device_class):
            cloud: Start = partial(self.cloud.start, request, patient=patient)
            if not self.presence(drafted.draft).on_edge:
                return TieredGeneration([cloud], request, f"No device has '{drafted.draft}'.")
            starts.append(cloud)
        return TieredGeneration(starts, request, reason)

    def drafted_now(self, model: str) -> DraftedModel | None:
        """The drafted model of this name, while a device is ready with its draft."""
        drafted = self.drafted.get(model)
        if drafted is None or not self.presence(drafted.draft).ready_devices:
            return None
        return drafted

    def _start(self, tier: str, request: pb.GenerateRequest, *, is_last: bool) -> Start:
        if tier == "cloud":
            return partial(self.cloud.start, request, patient=is_last)
        if not is_last and request.hints.privacy != pb.PRIVACY_LOCAL_PREFERRED:
            # Better answered by the next tier than queued for a device.
            hurried = pb.GenerateRequest()
            hurried.CopyFrom(request)
            hurried.hints.no_waiting = True
            request = hurried
        return partial(self.edge.start, request)


class TieredGeneration:
    """A sequence that goes on to the next tier when one fails before any output."""

    def __init__(self, starts: Sequence[Start], request: pb.GenerateRequest, reason: str) -> None:
        self._request = request
        self._reason = reason
        self._rest = list(starts[1:])
        self._current: Generation = starts[0]()
        self._earlier: list[Generation] = []
        self._failed_before: pb.SequenceUpdate | None = None
        self._has_output = False

    @property
    def tier(self) -> str:
        """See `Generation.tier`."""
        return self._current.tier

    @property
    def account(self) -> Account:
        """See `Generation.account`; of all tiers that were tried."""
        account = Account()
        for generation in (*self._earlier, self._current):
            account.uses.update(generation.account.uses)
            account.tries.extend(generation.account.tries)
        return account

    async def take(self) -> Sequence[pb.SequenceUpdate]:
        """See `Generation.take`."""
        while True:
            updates = await self._current.take()
            if self._current.tier == "cloud":
                self._explain(updates)
            self._has_output = self._has_output or has_output(updates)
            if self._has_output or not _worth_another(updates[-1]) or not self._rest:
                return self._final(updates)
            self._failed_before = updates[-1]
            message = updates[-1].failed.message
            self._reason = f"The {self.tier} could not serve it: {message.rstrip('.')}."
            self._earlier.append(self._current)
            self._current = self._rest.pop(0)()

    def cancel(self) -> None:
        """See `Generation.cancel`."""
        self._current.cancel()

    def _explain(self, updates: Sequence[pb.SequenceUpdate]) -> None:
        """Put the tier's reason before the endpoint's, and count the edge that was tried before.

        The edge's hub gives its own reason.
        """
        for update in updates:
            if update.HasField("placed"):
                update.placed.attempt += len(self._earlier)
                update.placed.reason = f"{self._reason} {update.placed.reason}"

    def _final(self, updates: Sequence[pb.SequenceUpdate]) -> Sequence[pb.SequenceUpdate]:
        """The end, or for a tier that was not asked the failure of the one before."""
        before = self._failed_before
        if before is None or not updates[-1].HasField("failed"):
            return updates
        error = ShoalError.from_wire(updates[-1].failed)
        if error.reason not in _NOT_ASKED:
            return updates
        node_failed = ShoalError.from_wire(before.failed).reason is Reason.UPSTREAM
        if node_failed and error.reason is Reason.BUDGET_EXCEEDED:
            # No retry brings money, whatever becomes of the node.
            return updates
        told = pb.SequenceUpdate()
        told.CopyFrom(before)
        told.failed.message = f"{before.failed.message} The cloud was not asked: {error.message}"
        return [*updates[:-1], told]


def _worth_another(update: pb.SequenceUpdate) -> bool:
    return (
        update.HasField("failed") and ShoalError.from_wire(update.failed).reason in _TRY_NEXT_TIER
    )
