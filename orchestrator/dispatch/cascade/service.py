"""Cascades of one gateway: which requests go through one, by which threshold, and what is kept."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import structlog

from orchestrator.dispatch.backend import Generation
from orchestrator.dispatch.cascade.audit import Audits
from orchestrator.dispatch.cascade.calibration import Calibration, Sample
from orchestrator.dispatch.cascade.generation import CascadeGeneration
from orchestrator.dispatch.cascade.judging import Bar, Judge, Why
from orchestrator.dispatch.cascade.legs import Leg
from orchestrator.dispatch.cascade.policy import AUTO, CascadePolicy, KnownModel, Route, resolve
from orchestrator.dispatch.cascade.run import CascadeRun, Starts, within_vocabulary
from orchestrator.dispatch.cascade.totals import Totals
from orchestrator.dispatch.dispatcher import Dispatcher
from orchestrator.dispatch.ruling import Ruling
from orchestrator.fleet.registry_redis import StateError
from orchestrator.request import Privacy
from shoal.errors import ShoalError
from shoal.v1 import inference_pb2 as pb

_log = structlog.get_logger(__name__)

# A new threshold applies within this time.
_REMEMBERED_S = 2.0
_MAX_REMEMBERED = 10_000


class Store(Protocol):
    """Where thresholds and samples are kept (`orchestrator.fleet`'s CascadeStore)."""

    async def add_sample(self, tenant: str, policy: str, sample: dict[str, Any]) -> None:
        """Keep one; raises StateError."""
        ...

    async def samples(self, tenant: str, policy: str) -> list[dict[str, Any]]:
        """All that are kept; raises StateError."""
        ...

    async def put_threshold(self, tenant: str, policy: str, values: dict[str, Any]) -> None:
        """Set one; raises StateError."""
        ...

    async def thresholds(self, tenant: str) -> dict[str, dict[str, Any]]:
        """By policy; raises StateError."""
        ...


@dataclass(frozen=True, slots=True)
class Wish:
    """What one request may change of its cascade; None and empty: as the policy says."""

    threshold: float | None = None
    delivery: str = ""
    streams: bool = False


class Cascades:
    """Knows the policies; starts requests whose model is one of them."""

    def __init__(
        self,
        policies: Sequence[CascadePolicy],
        dispatcher: Dispatcher,
        store: Store,
        # Not a secret: it chooses samples.
        dice: random.Random = random.Random(),  # noqa: S311, B008 - one for all is meant
    ) -> None:
        self.policies = {each.name: each for each in (CascadePolicy(), *policies)}
        self.audits = Audits(dispatcher.cloud)
        self.totals: dict[str, Totals] = {}
        self._dispatcher = dispatcher
        self._store = store
        self._dice = dice
        self._bars: dict[str, tuple[float, dict[str, Bar]]] = {}
        self._warned: set[str] = set()

    def policy(self, model: str) -> CascadePolicy | None:
        """The cascade that answers for this model; None: it is an ordinary one.

        A model of the name `auto` that somebody serves is that model.
        """
        policy = self.policies.get(model)
        if policy is not None and policy.name == AUTO and policy == CascadePolicy():
            served = self._dispatcher.presence(AUTO)
            if served.on_edge or served.in_cloud:
                return None
        return policy

    def routes(self) -> list[tuple[str, Route]]:
        """The cascades by name with who would answer a request that may go anywhere."""
        models, found = self._models(), list[tuple[str, Route]]()
        for name in self.policies:
            policy = self.policy(name)
            if policy is not None:
                # Nobody to answer: it cannot be asked for now.
                with contextlib.suppress(ShoalError):
                    found.append((name, resolve(policy, models, Privacy.ANY)))
        return found

    async def start(
        self, request: pb.GenerateRequest, ruling: Ruling, wish: Wish
    ) -> CascadeGeneration:
        """Begin; `request.model` must have a policy. Raises MODEL_NOT_FOUND."""
        policy = self.policies[request.model]
        hints = request.hints
        models = self._models(hints.device_class)
        pinned = bool(hints.device or hints.device_class)
        route = resolve(policy, models, ruling.level, pinned=pinned)
        route = within_vocabulary(policy, route, request)
        bar = (await self._tenant_bars(request.tenant)).get(policy.name, Bar(policy.threshold))
        if wish.threshold is not None:
            bar = Bar(wish.threshold, bar.expected_tokens)
        explores = self._dice.random() < policy.explore_share
        max_tokens = request.max_tokens if request.HasField("max_tokens") else None
        # Nobody to hand over to: all that is left is to tell the confidence.
        shown = route.target is None
        judge = Judge(bar, max_tokens, stops_early=not (explores or shown))
        delivery = (wish.delivery or policy.delivery) if wish.streams else "hold"
        run = CascadeRun(
            policy=policy,
            request=request,
            edge_model=route.edge,
            target=route.target,
            delivery=delivery,
            hold_s=policy.hold_s if wish.streams and delivery == "hold" else None,
            shown_at_once=shown,
        )
        return CascadeGeneration(run, judge, self._starts(request, route))

    def ended(self, generation: CascadeGeneration, ruling: Ruling) -> None:
        """Keep the sample of one that ended, and audit it perhaps; returns at once."""
        run, judge = generation.run, generation.judge
        edge = generation.edge
        self._count(generation)
        if edge is None or not judge.confidence.num_tokens or not _was_judged(judge.why):
            return
        cloud = generation.account.uses.get("cloud")
        sample = Sample(
            unix_s=round(time.time(), 3),
            score=round(judge.confidence.score, 6),
            num_tokens=judge.confidence.num_tokens,
            escalated=generation.escalated,
            whole=not judge.may_stop_early,
            cost_nanos=(cloud.cost_nanos or 0) if cloud else 0,
            cloud_tokens=cloud.prompt_tokens + cloud.completion_tokens if cloud else 0,
        )
        self._dispatcher.cloud.in_background(
            self._keep(run.request.tenant, run.policy.name, sample)
        )
        target = run.target
        audited = (
            generation.why is Why.CONFIDENT
            and edge.finished is not None
            and target is not None
            and target.tier == "cloud"
            and target.model in self._dispatcher.cloud.routes
            and ruling.may_leave
            and self._dice.random() < run.policy.audit_share
        )
        if audited and target is not None:
            self.audits.begin(run.policy.name, target.model, run.request, edge.text)

    def _count(self, generation: CascadeGeneration) -> None:
        totals = self.totals.setdefault(generation.run.policy.name, Totals())
        decision = "escalated" if generation.escalated else "accepted"
        why = generation.why
        # Whose client left before the verdict has none.
        end = (decision, why.value) if why is not None else ("cancelled", "")
        totals.ends[end] += 1
        if generation.escalated and generation.edge is not None:
            totals.discarded_tokens += generation.edge.num_tokens
        if generation.judge.confidence.num_tokens and why is not None:
            totals.saw(generation.judge.confidence.score)

    async def calibrated(self, tenant: str, policy: str, found: Calibration) -> None:
        """Use a threshold from now on; raises StateError."""
        values = {**asdict(found), "calibrated_unix_s": int(time.time())}
        await self._store.put_threshold(tenant, policy, values)
        self._bars.pop(tenant, None)

    async def samples(self, tenant: str, policy: str) -> list[Sample]:
        """What is known of a tenant's answers; raises StateError."""
        return [Sample(**row) for row in await self._store.samples(tenant, policy)]

    async def thresholds(self, tenant: str) -> dict[str, dict[str, Any]]:
        """What calibrations found for a tenant, by policy; raises StateError."""
        return await self._store.thresholds(tenant)

    async def _keep(self, tenant: str, policy: str, sample: Sample) -> None:
        try:
            await self._store.add_sample(tenant, policy, asdict(sample))
        except StateError as error:
            _log.warning("cascade_sample_lost", cause=type(error).__name__)

    async def _tenant_bars(self, tenant: str) -> dict[str, Bar]:
        """Thresholds by policy; those of a moment ago while the store is away."""
        known = self._bars.get(tenant)
        now_s = time.monotonic()
        if known is not None and now_s < known[0]:
            return known[1]
        try:
            rows = await self._store.thresholds(tenant)
        except StateError as error:
            _log.warning("cascade_thresholds_unreadable", cause=type(error).__name__)
            return known[1] if known is not None else {}
        bars = {
            name: Bar(float(row["threshold"]), int(row["expected_tokens"]))
            for name, row in rows.items()
        }
        if len(self._bars) >= _MAX_REMEMBERED:
            self._bars.clear()
        self._bars[tenant] = (now_s + _REMEMBERED_S, bars)
        return bars

    def _models(self, device_class: str = "") -> list[KnownModel]:
        """All that is served now; with a class, ready on devices of that class only."""
        names = {m.name for s in self._dispatcher.edge.summaries() for m in s.models}
        found = []
        drafted = {n for n in self._dispatcher.drafted if self._dispatcher.drafted_now(n)}
        for name in sorted(names | drafted | set(self._dispatcher.cloud.routes)):
            seen = self._dispatcher.presence(name)
            ready = seen.ready_devices > 0 and (
                not device_class or device_class in self._dispatcher.classes(name)
            )
            in_cloud = seen.in_cloud or name in drafted
            found.append(KnownModel(name, seen.num_parameters, ready, in_cloud))
        # Before any device has come, theirs are all missing.
        if names:
            self._warn_of_strangers(names, {each.name for each in found})
        return found

    def _warn_of_strangers(self, on_devices: set[str], served: set[str]) -> None:
        """Say once of each name in the configuration that nothing of it is here, or configured.

        Who answers first must be a model of devices.
        """
        known = served | set(self._dispatcher.drafted)
        for policy in self.policies.values():
            edges = {policy.edge} - {""} - on_devices
            for model in (*edges, *(each for each in policy.escalate_to if each not in known)):
                if model not in self._warned:
                    self._warned.add(model)
                    _log.warning("cascade_model_not_served", cascade=policy.name, model=model)

    def _starts(self, request: pb.GenerateRequest, route: Route) -> Starts:
        edge = again = target = None
        if route.edge:
            edge = self._on_edge(_copy(request, route.edge, ".edge", measure=True))
            again = self._on_edge(_copy(request, route.edge, ".again"))
        if route.target is not None:
            asked = _copy(request, route.target.model, ".up")
            target = self._target(route.target.tier, asked)
        return Starts(edge, target, again)

    def _on_edge(self, request: pb.GenerateRequest) -> Callable[[], Leg]:
        edge = self._dispatcher.edge
        return lambda: Leg(edge.start(request), request.model, request.request_id)

    def _target(self, tier: str, request: pb.GenerateRequest) -> Callable[[bool], Leg]:
        def start(patient: bool) -> Leg:
            if tier == "edge":
                return self._on_edge(request)()
            # The cloud's own gate and budget decide whether it goes out.
            drafted = self._dispatcher.drafted_now(request.model)
            generation: Generation = (
                self._dispatcher.start_drafted(request, drafted, patient=patient)
                if drafted is not None
                else self._dispatcher.cloud.start(request, patient=patient)
            )
            return Leg(generation, request.model, request.request_id)

        return start


def _was_judged(why: Why | None) -> bool:
    """Whether the threshold decided, so that another would have decided otherwise."""
    return why in (Why.CONFIDENT, Why.LOW_CONFIDENCE, Why.HOPELESS)


def _copy(
    request: pb.GenerateRequest, model: str, suffix: str, *, measure: bool = False
) -> pb.GenerateRequest:
    """The request of one leg: its own model, and an id of its own at the hub."""
    leg = pb.GenerateRequest()
    leg.CopyFrom(request)
    leg.model = model
    leg.request_id = request.request_id + suffix
    leg.measure_confidence = measure
    return leg
