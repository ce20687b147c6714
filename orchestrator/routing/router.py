"""The router: request + fleet view -> decision. Pure: no I/O, no clock, no global randomness."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence

from orchestrator.fleet.view import (
    DeviceClass,
    DeviceId,
    DeviceView,
    FleetView,
    Group,
    ServedModel,
    num_occupied,
)
from orchestrator.request import Objective, RouteRequest, SloMiss
from orchestrator.routing import drawing
from orchestrator.routing.backlog import Backlog, backlog_of
from orchestrator.routing.considering import Considered, consider, shared_bytes
from orchestrator.routing.decision import Decision, LazyCandidates, Prediction
from orchestrator.routing.estimator import SURE_SHARE, Estimator, Outcome
from orchestrator.routing.explanation import (
    chosen_of,
    explained,
    failure_of,
    listed,
    refused,
    sentence,
    unknown,
    unreachable,
)
from orchestrator.routing.prefixes import PrefixMemory
from orchestrator.routing.scoring import Contender, Scale, ranked
from orchestrator.routing.shared_prefill import PrefillChoice, consider_sharing
from orchestrator.routing.tree import class_order, tier_for
from shoal.errors import ShoalError

# Candidates that a decision lists; the best ones are always among them.
MAX_LISTED = 64


class Router:
    """Routes by the tree, the SLO and measured speed, and towards what is cached.

    It changes by what it observes and by where it placed which prompt's beginning. In a
    fleet of up to drawing.FULL_SCAN_DEVICES every device is considered; in a larger one a
    few of those with room are drawn of each class in turn.
    """

    def __init__(
        self,
        estimator: Estimator | None = None,
        *,
        rng: random.Random | None = None,
        on_slo_miss: SloMiss = SloMiss.UNSTATED,
    ) -> None:
        self._estimator = estimator or Estimator()
        # Placement needs no secrecy, and a fixed seed makes runs repeatable.
        self._rng = rng or random.Random(0)  # noqa: S311
        # For requests that do not say.
        self._on_slo_miss = on_slo_miss
        self._prefixes = PrefixMemory()

    def route(
        self,
        request: RouteRequest,
        view: FleetView,
        *,
        exclude: frozenset[DeviceId] = frozenset(),
        now_ms: float,
    ) -> Decision:
        """Rank the devices that can take the request; with none, `failure` says why.

        `exclude` holds devices that failed this request already; `now_ms` is Unix time.
        """
        hints = request.prefix_hints
        considered = Considered(
            request,
            exclude,
            expected := self._estimator.expect(request, now_ms),
            Scale(request, expected.completion_tokens),
            cached := self._prefixes.cached_bytes(request.model, hints, now_ms) if hints else {},
            self._prefixes.common_tokens(request.model),
            shared_bytes(request, cached, view.devices) if cached else {},
        )
        decision = self._decide(considered, view, now_ms)
        if decision.ranked:
            best = considered.contenders[0]
            self._estimator.track(best.device, best.standing.model)
            if hints:
                self._prefixes.note(request.model, hints, best.device.device_id, now_ms)
        return decision

    def predict(self, request: RouteRequest, device: DeviceView, model: ServedModel) -> Prediction:
        """TTFT, TPOT and joules of the request on the device as the view shows it."""
        return self._estimator.predict(request, device, model)

    def shared_prefill(
        self, request: RouteRequest, decision: Decision, view: FleetView
    ) -> PrefillChoice | None:
        """Whether another device should compute the prompt; see `consider_sharing`."""
        return consider_sharing(request, decision, view, (self._estimator, self._prefixes))

    def best_of(self, request: RouteRequest, devices: Sequence[DeviceView]) -> Prediction:
        """The prediction of the device that would answer first; all serve the model.

        Nothing is kept of the devices, however many there are.
        """
        estimator, expected = self._estimator, self._estimator.expect(request)
        predictions = [
            estimator.predict_expected(expected, device, model, num_occupied(device, model))
            for device in devices
            if (model := device.models.get(request.model)) is not None
        ]
        num_tokens = expected.completion_tokens
        return min(predictions, key=lambda p: p.ttft_ms + num_tokens * p.tpot_ms)

    def backlog(self, request: RouteRequest, view: FleetView, now_ms: float) -> Backlog:
        """What a request has to expect that waits for one of the devices that are full."""
        if len(view.devices) <= drawing.FULL_SCAN_DEVICES:
            return backlog_of(request, self._estimator, list(view.devices.values()), now_ms)
        ids_of = [group.all.ids for group in view.serving.groups(request.model).values()]
        total, drawn = sum(map(len, ids_of)), []
        for ids in ids_of:
            count = math.ceil(drawing.MANY * len(ids) / total)
            drawn += drawing.draw(ids, view.devices, count, self._rng)
        return backlog_of(request, self._estimator, drawn, now_ms, of=total)

    def observe(self, outcome: Outcome) -> None:
        """Learn from a completed request."""
        self._estimator.observe(outcome)
        self._prefixes.observe(outcome)

    def observe_ttft(self, model_name: str, actual_ms: float, prediction: Prediction) -> None:
        """A first token came so long after its request had been sent to a device."""
        self._estimator.observe_ttft(model_name, actual_ms, prediction.ttft_ms)

    def forget(self, device_id: DeviceId) -> None:
        """Drop what was learned of a device that left or was removed."""
        self._estimator.forget(device_id)
        self._prefixes.forget(device_id)

    def _decide(self, considered: Considered, view: FleetView, now_ms: float) -> Decision:
        request = considered.request
        if len(view.devices) <= drawing.FULL_SCAN_DEVICES:
            devices: Collection[DeviceView] = view.devices.values()
        elif request.device:
            by_id = view.devices.get(DeviceId(request.device))
            devices = (
                [by_id]
                if by_id is not None
                else [device for device in view.devices.values() if device.name == request.device]
            )
        else:
            return self._decide_large(considered, view, now_ms)
        consider(considered, self._estimator, devices)
        return self._conclude(considered, now_ms, len(considered.devices))

    def _decide_large(self, considered: Considered, view: FleetView, now_ms: float) -> Decision:
        request = considered.request
        groups = view.serving.groups(request.model)
        self._draw_by_class(considered, view, groups)
        if not considered.contenders and considered.exclude:
            for group in groups.values():
                self._draw_more(considered, view, group.open.ids, drawing.MANY)
        if not considered.contenders:
            # Nobody has room: a few of those that serve the model tell why.
            asked = [g for c, g in groups.items() if request.device_class in ("", c)]
            for group in asked or groups.values():
                count = drawing.DRAW_PER_CLASS_OF_ALL
                self._draw_more(considered, view, group.all.ids, count)
        num_serving = sum([len(group.all.ids) for group in groups.values()])
        return self._conclude(considered, now_ms, num_serving)

    def _draw_more(
        self, considered: Considered, view: FleetView, ids: list[DeviceId], count: int
    ) -> None:
        """Look at `count` drawn devices, but for those that were looked at already."""
        seen = {device.device_id for device in considered.devices}
        drawn = drawing.draw(ids, view.devices, count, self._rng)
        consider(considered, self._estimator, [d for d in drawn if d.device_id not in seen])

    def _draw_by_class(
        self, considered: Considered, view: FleetView, groups: Mapping[DeviceClass, Group]
    ) -> None:
        """A few devices with room of each class in the tree's order, up to one that serves well.

        The least energy may be in any class: then some of all are drawn. Devices that are
        likely to hold the prompt's beginning are always looked at.
        """
        request, devices = considered.request, view.devices
        by_class = request.objective is Objective.LATENCY
        holders = _holders(considered, devices)
        num_drawn = drawing.DRAW_PER_CLASS if by_class else drawing.DRAW_PER_CLASS_OF_ALL
        for device_class in _order_in(request, groups, view):
            group = groups.get(device_class)
            if group is None or request.device_class not in ("", device_class):
                continue
            num_before = len(considered.contenders)
            drawn = drawing.draw(group.open.ids, devices, num_drawn, self._rng)
            for holder in holders:
                if holder.device_class == device_class and all(
                    holder is not each for each in drawn
                ):
                    drawn.append(holder)
            consider(considered, self._estimator, drawn)
            if by_class and any([c.serves_well for c in considered.contenders[num_before:]]):
                break

    def _conclude(self, considered: Considered, now_ms: float, num_serving: int) -> Decision:
        request, others = considered.request, considered.ruled_out
        num_parameters = next(
            (
                model.num_parameters
                for device in considered.devices
                if (model := device.models.get(request.model)) is not None
            ),
            None,
        )
        if num_parameters is None:
            return unknown(request, listed(others), int(now_ms))
        order = class_order(num_parameters, request.slo.tpot_ms)
        best_first = ranked(considered.contenders, order, considered.scale)
        failure = self._failure(considered, best_first)
        if failure is not None:
            best_first, others = [], [*refused(best_first), *others]
        num_listed = min(MAX_LISTED, len(best_first) + len(others))
        return Decision(
            request_id=request.request_id,
            model=request.model,
            tier=tier_for(num_parameters),
            class_order=order,
            ranked=tuple([contender.device.device_id for contender in best_first]),
            candidates=LazyCandidates(
                chosen_of(best_first),
                lambda: (*explained(request, best_first), *listed(others))[:MAX_LISTED],
            ),
            reason=failure.message
            if failure is not None
            else sentence(request, best_first, others, num_parameters),
            failure=failure,
            decided_unix_ms=int(now_ms),
            num_unlisted=max(0, num_serving - num_listed),
            privacy=request.privacy.value,
        )

    def _failure(self, considered: Considered, best_first: list[Contender]) -> ShoalError | None:
        request = considered.request
        if not best_first:
            return failure_of(request, considered.ruled_out, self._estimator)
        best, sure_share = best_first[0], self._estimator.sure_share(request.model)
        if best.meets_slo and _may_promise(request, best, sure_share):
            return None
        stated = request.on_slo_miss
        wanted = self._on_slo_miss if stated is SloMiss.UNSTATED else stated
        if wanted is not SloMiss.REFUSE:
            return None
        return unreachable(request, best, sure_share or SURE_SHARE)


def _may_promise(request: RouteRequest, best: Contender, sure_share: float | None) -> bool:
    """Whether a TTFT that is predicted to be met will be.

    An idle device is always tried: else nobody would learn that it does better now. Until
    it is known how far predictions are off, only waits for a slot are taken to vary.
    """
    ttft_ms = request.slo.ttft_ms
    if ttft_ms is None or not best.occupied or (sure_share is None and best.free_slot):
        return True
    return best.ttft_ms <= (sure_share or SURE_SHARE) * ttft_ms


def _holders(considered: Considered, devices: Mapping[DeviceId, DeviceView]) -> list[DeviceView]:
    """The devices that are likely to hold most of the prompt's beginning."""
    cached = considered.cached_bytes
    best = sorted(cached, key=cached.__getitem__, reverse=True)[: drawing.MAX_HOLDERS]
    return [device for device_id in best if (device := devices.get(device_id)) is not None]


def _order_in(
    request: RouteRequest, groups: Mapping[DeviceClass, Group], view: FleetView
) -> Sequence[DeviceClass]:
    """Class order for the model as some device in the view serves it; empty: none does."""
    for group in groups.values():
        model = view.devices[group.all.ids[0]].models[request.model]
        return class_order(model.num_parameters, request.slo.tpot_ms)
    return ()
