"""The router: request + fleet view -> decision. Pure: no I/O, no clock, no global randomness."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from orchestrator.fleet.view import DeviceClass, DeviceId, DeviceView, FleetView, ServedModel
from orchestrator.request import RouteRequest
from orchestrator.routing import drawing
from orchestrator.routing.decision import Candidate, Decision, Prediction
from orchestrator.routing.eligibility import why_full, why_ineligible
from orchestrator.routing.estimator import Estimator, Outcome, num_occupied
from orchestrator.routing.explanation import explained, failure_of, ruled_out, sentence, unknown
from orchestrator.routing.scoring import Contender, contend, ranked
from orchestrator.routing.tree import class_order, tier_for

# Candidates that a decision lists; the best ones are always among them.
MAX_LISTED = 64


@dataclass(slots=True)
class _Considered:
    """The devices looked at for one decision."""

    contenders: list[Contender] = field(default_factory=list)
    ruled_out: list[Candidate] = field(default_factory=list)
    devices: list[DeviceView] = field(default_factory=list)


class Router:
    """Routes by the tree, the SLO and measured speed; changes only through `observe`.

    In a fleet of up to drawing.FULL_SCAN_DEVICES every device is considered; in a larger
    one a few are drawn of each class in turn, and many more before a request is refused.
    """

    def __init__(
        self, estimator: Estimator | None = None, *, rng: random.Random | None = None
    ) -> None:
        self._estimator = estimator or Estimator()
        # Placement needs no secrecy, and a fixed seed makes runs repeatable.
        self._rng = rng or random.Random(0)  # noqa: S311
        self._index = drawing.ModelIndex()

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
        if len(view.devices) <= drawing.FULL_SCAN_DEVICES:
            return self._decide_among(request, view.devices.values(), exclude, now_ms)
        if request.device:
            pinned = (
                device
                for device in view.devices.values()
                if request.device in (device.device_id, device.name)
            )
            return self._decide_among(request, pinned, exclude, now_ms)
        return self._decide_large(request, view, exclude, now_ms)

    def predict(self, request: RouteRequest, device: DeviceView, model: ServedModel) -> Prediction:
        """TTFT, TPOT and joules of the request on the device as the view shows it."""
        return self._estimator.predict(request, device, model)

    def observe(self, outcome: Outcome) -> None:
        """Learn from a completed request."""
        self._estimator.observe(outcome)

    def forget(self, device_id: DeviceId) -> None:
        """Drop what was learned of a device that left or was removed."""
        self._estimator.forget(device_id)

    def _decide_large(
        self, request: RouteRequest, view: FleetView, exclude: frozenset[DeviceId], now_ms: float
    ) -> Decision:
        serving = self._index.serving(view, request.model, now_ms)
        considered = self._draw_by_class(request, view, exclude, serving)
        if considered.contenders:
            return self._conclude(request, considered, now_ms, _num_serving(serving))
        serving = self._index.serving(view, request.model, now_ms, urgent=True)
        considered = _Considered()
        for ids in serving.values():
            drawn = drawing.draw(ids, view.devices, drawing.SECOND_DRAW_PER_CLASS, self._rng)
            self._consider(request, drawn, exclude, considered)
        return self._conclude(request, considered, now_ms, _num_serving(serving))

    def _draw_by_class(
        self,
        request: RouteRequest,
        view: FleetView,
        exclude: frozenset[DeviceId],
        serving: drawing.Serving,
    ) -> _Considered:
        """A few devices of each class in the tree's order, up to one that serves well."""
        considered = _Considered()
        for device_class in self._order_in(request, serving, view):
            ids = serving.get(device_class)
            if not ids or request.device_class not in ("", device_class):
                continue
            num_before = len(considered.contenders)
            drawn = drawing.draw(ids, view.devices, drawing.DRAW_PER_CLASS, self._rng)
            self._consider(request, drawn, exclude, considered)
            if any(c.meets_slo and c.free_slot for c in considered.contenders[num_before:]):
                break
        return considered

    def _order_in(
        self, request: RouteRequest, serving: drawing.Serving, view: FleetView
    ) -> Sequence[DeviceClass]:
        """Class order for the model as some device in the view serves it; empty: none does."""
        for ids in serving.values():
            for device_id in ids:
                device = view.devices.get(device_id)
                model = None if device is None else device.models.get(request.model)
                if model is not None:
                    return class_order(model.num_parameters, request.slo.tpot_ms)
        return ()

    def _decide_among(
        self,
        request: RouteRequest,
        devices: Iterable[DeviceView],
        exclude: frozenset[DeviceId],
        now_ms: float,
    ) -> Decision:
        considered = _Considered()
        self._consider(request, devices, exclude, considered)
        return self._conclude(request, considered, now_ms, len(considered.devices))

    def _consider(
        self,
        request: RouteRequest,
        devices: Iterable[DeviceView],
        exclude: frozenset[DeviceId],
        considered: _Considered,
    ) -> None:
        """Look at each device once and add it to `considered`."""
        estimator, expected = self._estimator, self._estimator.expect(request)
        for device in devices:
            considered.devices.append(device)
            rejection = why_ineligible(request, device, exclude)
            if rejection is None:
                model = device.models[request.model]
                occupied = num_occupied(device, model)
                rejection = why_full(device, model, occupied)
            if rejection is not None:
                considered.ruled_out.append(ruled_out(device, rejection))
                continue
            prediction = estimator.predict_expected(expected, device, model, occupied)
            considered.contenders.append(
                contend(request, device, prediction, expected.completion_tokens, occupied)
            )

    def _conclude(
        self, request: RouteRequest, considered: _Considered, now_ms: float, num_serving: int
    ) -> Decision:
        num_parameters = next(
            (
                model.num_parameters
                for device in considered.devices
                if (model := device.models.get(request.model)) is not None
            ),
            None,
        )
        if num_parameters is None:
            return unknown(request, tuple(considered.ruled_out), int(now_ms))
        order = class_order(num_parameters, request.slo.tpot_ms)
        best_first = ranked(considered.contenders, order)
        candidates = (*explained(request, best_first), *considered.ruled_out)[:MAX_LISTED]
        failure = None
        if best_first:
            reason = sentence(request, best_first, considered.ruled_out, num_parameters)
        else:
            failure = failure_of(request, considered.devices, considered.ruled_out, self._estimator)
            reason = failure.message
        return Decision(
            request_id=request.request_id,
            model=request.model,
            tier=tier_for(num_parameters),
            class_order=order,
            ranked=tuple([contender.device.device_id for contender in best_first]),
            candidates=candidates,
            reason=reason,
            failure=failure,
            decided_unix_ms=int(now_ms),
            num_unlisted=max(0, num_serving - len(candidates)),
        )


def _num_serving(serving: drawing.Serving) -> int:
    return sum(map(len, serving.values()))
