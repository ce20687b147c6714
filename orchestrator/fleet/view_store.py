"""Builds the fleet view: a change of one device replaces only that device's value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestrator.fleet.view import (
    DeviceId,
    DeviceState,
    DeviceView,
    FleetView,
    ServedModel,
    ServingIndex,
    Unwell,
)


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """What an engine reported of its queue."""

    model: str
    running: int
    waiting: int
    waiting_prefill_tokens: int
    # See ServedModel.
    shared_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reservation:
    """One request that was sent to a device and has not ended there."""

    device_id: DeviceId
    model: str
    prompt_tokens: int
    # Unix ms.
    sent_ms: float = 0.0


class ViewStore:
    """Current DeviceView of each device, with the hub's own reservations in it.

    `fleet` shows every change at once; its DeviceViews are immutable.
    """

    def __init__(self) -> None:
        self._views: dict[DeviceId, DeviceView] = {}
        self._in_flight: dict[DeviceId, dict[str, int]] = {}
        self._prefill: dict[DeviceId, dict[str, int]] = {}
        self._prompts: dict[DeviceId, dict[str, tuple[int, ...]]] = {}
        self._since: dict[DeviceId, dict[str, tuple[float, ...]]] = {}
        # Why devices get no requests for a model, by model name.
        self._unwell: dict[DeviceId, dict[str, Unwell]] = {}
        self._version = 0
        self._serving = ServingIndex()
        self.fleet = FleetView(self._views, self._serving)

    @property
    def version(self) -> int:
        """Grows with each change."""
        return self._version

    def get(self, device_id: DeviceId) -> DeviceView | None:
        """The device now; None when it is not in the view."""
        return self._views.get(device_id)

    def put(self, view: DeviceView) -> None:
        """Add or replace a device; its reservations stay."""
        device_id = view.device_id
        unwell = self._unwell.get(device_id)
        models = view.models
        if unwell:
            models = {name: _judged(model, unwell.get(name)) for name, model in models.items()}
        self._set(
            replace(
                view,
                models=models,
                in_flight=dict(self._in_flight.get(device_id, {})),
                in_flight_prefill_tokens=dict(self._prefill.get(device_id, {})),
                in_flight_prompts=dict(self._prompts.get(device_id, {})),
                in_flight_since=dict(self._since.get(device_id, {})),
            )
        )

    def remove(self, device_id: DeviceId) -> None:
        """Take the device out of the view."""
        self._unwell.pop(device_id, None)
        view = self._views.pop(device_id, None)
        if view is not None:
            self._serving.remove(view)
            self._version += 1

    def set_state(self, device_id: DeviceId, state: DeviceState) -> None:
        """Note the device's state; unknown devices are ignored."""
        view = self._views.get(device_id)
        if view is not None and view.state is not state:
            self._set(replace(view, state=state))

    def set_model(self, device_id: DeviceId, model: ServedModel) -> None:
        """Add or replace one model of a device."""
        view = self._views.get(device_id)
        if view is not None:
            judged = _judged(model, self._unwell.get(device_id, {}).get(model.name))
            self._set(replace(view, models={**view.models, model.name: judged}))

    def set_unwell(self, device_id: DeviceId, model_name: str, why: Unwell | None) -> None:
        """Route nothing to the device for the model, because of `why`; None: do again."""
        unwell = dict(self._unwell.pop(device_id, {}))
        unwell.pop(model_name, None)
        if why is not None:
            unwell[model_name] = why
        if unwell:
            self._unwell[device_id] = unwell
        view = self._views.get(device_id)
        model = None if view is None else view.models.get(model_name)
        if view is not None and model is not None:
            models = {**view.models, model_name: _judged(model, why)}
            self._set(replace(view, models=models))

    def set_loads(self, device_id: DeviceId, loads: tuple[ModelLoad, ...]) -> None:
        """Note the queues that the device's engines reported."""
        view = self._views.get(device_id)
        if view is None:
            return
        changed: dict[str, ServedModel] = {}
        for load in loads:
            model = view.models.get(load.model)
            if model is not None and not _reports(model, load):
                changed[load.model] = replace(
                    model,
                    running=load.running,
                    waiting=load.waiting,
                    waiting_prefill_tokens=load.waiting_prefill_tokens,
                    shared_bytes_per_s=load.shared_bytes_per_s,
                )
        if changed:
            self._set(replace(view, models={**view.models, **changed}))

    def set_power(
        self,
        device_id: DeviceId,
        power_w: float | None,
        *,
        estimated: bool,
        conditions: tuple[str, ...],
    ) -> None:
        """Note the device's power draw (None: no sensor) and named conditions."""
        view = self._views.get(device_id)
        known = None if view is None else (view.power_w, view.power_estimated, view.conditions)
        if view is not None and known != (power_w, estimated, conditions):
            self._set(
                replace(view, power_w=power_w, power_estimated=estimated, conditions=conditions)
            )

    def reserve(self, reservation: Reservation) -> None:
        """Count a request that is being sent to the device."""
        _add(self._in_flight, reservation.device_id, reservation.model, 1)
        _add(self._prefill, reservation.device_id, reservation.model, reservation.prompt_tokens)
        if reservation.prompt_tokens:
            prompts = self._prompts.setdefault(reservation.device_id, {})
            there = prompts.get(reservation.model, ())
            prompts[reservation.model] = (*there, reservation.prompt_tokens)
        by_model = self._since.setdefault(reservation.device_id, {})
        since = by_model.get(reservation.model, ())
        by_model[reservation.model] = (*since, reservation.sent_ms)
        self._show_reservations(reservation.device_id)

    def end_prefill(self, reservation: Reservation) -> None:
        """The request's prompt was processed: its tokens no longer wait."""
        self._prefilled(reservation)
        self._show_reservations(reservation.device_id)

    def release(self, reservation: Reservation, *, prefill_ended: bool) -> None:
        """The request ended on the device, or never reached it."""
        _add(self._in_flight, reservation.device_id, reservation.model, -1)
        by_model = self._since[reservation.device_id]
        since = list(by_model[reservation.model])
        since.remove(reservation.sent_ms)
        by_model[reservation.model] = tuple(since)
        self._discount_report(reservation)
        if not prefill_ended:
            self._prefilled(reservation)
        self._show_reservations(reservation.device_id)

    def in_flight(self, device_id: DeviceId) -> int:
        """Requests on the device, over all models."""
        return sum(self._in_flight.get(device_id, {}).values())

    def check_integrity(self) -> None:
        """Raise when reservations are negative or the views show others."""
        for counts in (self._in_flight, self._prefill):
            for device_id, by_model in counts.items():
                if any(count <= 0 for count in by_model.values()):
                    raise AssertionError(f"{device_id}: {by_model}")
        for device_id, prompts in self._prompts.items():
            sums = {model: sum(tokens) for model, tokens in prompts.items() if tokens}
            if sums != self._prefill.get(device_id, {}):
                raise AssertionError(f"{device_id}: {prompts} are not {self._prefill}")
        for device_id, view in self._views.items():
            if dict(view.in_flight) != self._in_flight.get(device_id, {}):
                raise AssertionError(f"{device_id}: stale reservations in the view")

    def _prefilled(self, reservation: Reservation) -> None:
        device_id, model, tokens = (
            reservation.device_id,
            reservation.model,
            reservation.prompt_tokens,
        )
        if not tokens:
            return
        _add(self._prefill, device_id, model, -tokens)
        by_model = self._prompts[device_id]
        there = list(by_model[model])
        there.remove(tokens)
        by_model[model] = tuple(there)

    def _discount_report(self, reservation: Reservation) -> None:
        """Take the request out of the device's last report, which may be a second old.

        Else its place would look taken, while others wait for it, until the next one.
        """
        view = self._views.get(reservation.device_id)
        model = None if view is None else view.models.get(reservation.model)
        if view is None or model is None:
            return
        reserved = self._in_flight[reservation.device_id].get(reservation.model, 0)
        if model.running + model.waiting <= reserved:
            return
        if model.running:
            rest = replace(model, running=model.running - 1)
        else:
            rest = replace(model, waiting=model.waiting - 1)
        self._set(replace(view, models={**view.models, model.name: rest}))

    def _show_reservations(self, device_id: DeviceId) -> None:
        view = self._views.get(device_id)
        if view is not None:
            self.put(view)

    def _set(self, view: DeviceView) -> None:
        self._serving.put(view, self._views.get(view.device_id))
        self._views[view.device_id] = view
        self._version += 1


def _reports(model: ServedModel, load: ModelLoad) -> bool:
    """Whether the view shows this load already."""
    return (
        model.running == load.running
        and model.waiting == load.waiting
        and model.waiting_prefill_tokens == load.waiting_prefill_tokens
        # Moves a little with each block: no news.
        and math.isclose(model.shared_bytes_per_s, load.shared_bytes_per_s, rel_tol=0.1)
    )


def _judged(model: ServedModel, why: Unwell | None) -> ServedModel:
    """The model with the hub's judgement; what is not loaded is not ready in any case."""
    loaded = model.ready or model.unwell is not None
    if not loaded or model.unwell == why:
        return model
    return replace(model, ready=why is None, unwell=why)


def _add(
    counts: dict[DeviceId, dict[str, int]], device_id: DeviceId, model: str, amount: int
) -> None:
    by_model: Mapping[str, int] = counts.get(device_id, {})
    rest = {**by_model, model: by_model.get(model, 0) + amount}
    if rest[model] <= 0:
        del rest[model]
    counts[device_id] = rest
