"""Judges lanes: who is suspected, who is ejected, and when the hub suspects itself."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence, Set

from orchestrator.config import HealthTerms
from orchestrator.fleet.health.brake import Brake
from orchestrator.fleet.health.lanes import Ejection, Judgement, Lane, Suspicion, Work
from orchestrator.fleet.health.outliers import Outcome, Outcomes
from orchestrator.fleet.view import DeviceId, DeviceState, FleetView


class Health:
    """The lanes that ever got a request; `judge` is called on a timer.

    - A silent lane (bounds.py) is suspected until a token comes, or the device connects
      anew or reloads the model.
    - An outlier (outliers.py) is ejected for a time that doubles, at most a share of a
      model's devices at once, and never the last that could serve.
    - Neither happens while the brake is on; what it finds just done, it undoes.
    """

    def __init__(self, terms: HealthTerms) -> None:
        self._terms = terms
        self._by_model: dict[str, dict[DeviceId, Lane]] = {}
        self._unfit: dict[Lane, None] = {}
        # Lanes with new outcomes since they were judged.
        self._unjudged: dict[Lane, None] = {}
        self.brake = Brake(terms)

    def lane(self, device_id: DeviceId, model: str) -> Lane:
        """The lane, made when it is new."""
        lanes = self._by_model.setdefault(model, {})
        lane = lanes.get(device_id)
        if lane is None:
            lane = lanes[device_id] = Lane(device_id, model, Outcomes(self._terms))
        return lane

    def lanes(self) -> Iterator[Lane]:
        """All lanes."""
        for lanes in self._by_model.values():
            yield from lanes.values()

    @property
    def is_idle(self) -> bool:
        """Whether nothing but work that is owed would change anything."""
        return not (self._unfit or self._unjudged or self.brake.is_on)

    def ended(self, lane: Lane, outcome: Outcome) -> None:
        """A request ended on the lane."""
        lane.outcomes.add(outcome)
        self._unjudged[lane] = None

    def renewed(self, device_id: DeviceId, model: str | None = None) -> list[Lane]:
        """The device connected anew, or reloaded a model: no longer suspect for it."""
        lifted = []
        for lane in self._of_device(device_id):
            if lane.suspicion is not None and model in (None, lane.model):
                lane.suspicion = None
                self._note(lane)
                lifted.append(lane)
        return lifted

    def forget(self, device_id: DeviceId) -> None:
        """The device was removed."""
        for lane in self._of_device(device_id):
            del self._by_model[lane.model][device_id]
            self._unfit.pop(lane, None)
            self._unjudged.pop(lane, None)

    def condition(self, device_id: DeviceId, model: str, now_ms: float) -> str:
        """Why the device gets no new requests for the model; empty: it does."""
        lane = self._by_model.get(model, {}).get(device_id)
        return "" if lane is None else lane.condition(now_ms)

    def judge(self, work: Sequence[Work], view: FleetView, now_ms: float) -> Judgement:
        """Suspect, eject and readmit; `work` holds one entry a lane that owes tokens.

        `view` shows which devices serve which models and is not changed.
        """
        before = {lane: (lane.suspicion, lane.ejection) for lane in self._unfit}
        was_braking = self.brake.is_on
        self._readmit(now_ms)
        silent = [each for each in work if each.due_ms < now_ms and each.lane.suspicion is None]
        outliers = [(lane, why) for lane in self._unjudged if (why := self._outlier(lane, now_ms))]
        self._unjudged.clear()
        sick = {lane.device_id for lane in self._unfit}
        sick.update(each.lane.device_id for each in silent)
        sick.update(lane.device_id for lane, _ in outliers)
        self.brake.judge(sick, self._working(sick, work, now_ms), now_ms)
        if self.brake.is_on:
            if not was_braking:
                self._undo_recent(now_ms)
        else:
            for each in silent:
                self._suspect(each, now_ms)
            for lane, why in outliers:
                self._eject(lane, why, view, now_ms)
        self._spare_last(view, now_ms)
        changed = [
            lane
            for lane in {**before, **self._unfit}
            if before.get(lane) != (lane.suspicion, lane.ejection)
        ]
        return Judgement(
            tuple(changed), None if self.brake.is_on == was_braking else self.brake.text
        )

    def check_integrity(self) -> None:
        """Raise when the bookkeeping contradicts itself."""
        for lane in self.lanes():
            if lane.fit == (lane in self._unfit):
                raise AssertionError(f"{lane.device_id} {lane.model}: fit and unfit")

    def _of_device(self, device_id: DeviceId) -> list[Lane]:
        return [lanes[device_id] for lanes in self._by_model.values() if device_id in lanes]

    def _note(self, lane: Lane) -> None:
        if lane.fit:
            self._unfit.pop(lane, None)
        else:
            self._unfit[lane] = None

    def _working(self, sick: Set[DeviceId], work: Sequence[Work], now_ms: float) -> Set[DeviceId]:
        """Devices that owe tokens or produced some within the brake's window."""
        working = {each.lane.device_id for each in work}
        # All lanes are looked at only when so many look sick that it matters.
        if len(sick) > self._terms.brake_share * self._terms.brake_min_devices:
            oldest_ms = now_ms - self._terms.brake_window_ms
            working.update(
                lane.device_id for lane in self.lanes() if lane.last_progress_ms >= oldest_ms
            )
        return working

    def _readmit(self, now_ms: float) -> None:
        for lane in list(self._unfit):
            if lane.suspicion is not None and lane.last_progress_ms > lane.suspicion.at_ms:
                lane.suspicion = None
            if lane.ejection is not None and now_ms >= lane.ejection.until_ms:
                self._return(lane, now_ms)
            self._note(lane)

    def _return(self, lane: Lane, now_ms: float) -> None:
        lane.ejection, lane.returned_ms = None, now_ms
        self._note(lane)

    def _undo_recent(self, now_ms: float) -> None:
        """The brake came on: what was done within its window was likely our fault too."""
        oldest_ms = now_ms - self._terms.brake_window_ms
        for lane in list(self._unfit):
            if lane.suspicion is not None and lane.suspicion.at_ms >= oldest_ms:
                lane.suspicion = None
            if lane.ejection is not None and lane.ejection.at_ms >= oldest_ms:
                lane.strikes = max(0, lane.strikes - 1)
                lane.ejection = None
            self._note(lane)

    def _suspect(self, each: Work, now_ms: float) -> None:
        lost_at_ms = each.silent_since_ms + self._terms.lost_factor * each.bound_ms
        each.lane.suspicion = Suspicion(now_ms, each.silent_since_ms, each.expected_ms, lost_at_ms)
        self._note(each.lane)

    def _outlier(self, lane: Lane, now_ms: float) -> str:
        """Why the lane should be ejected; empty: it should not."""
        if lane.ejection is not None:
            return ""
        failing = lane.outcomes.failing(now_ms)
        if failing:
            return failing
        slow = lane.outcomes.slowness(now_ms)
        if slow is None or slow <= self._terms.slow_factor:
            return ""
        others = [
            ratio
            for other in self._by_model[lane.model].values()
            if other is not lane and (ratio := other.outcomes.slowness(now_ms)) is not None
        ]
        usual = max(1.0, statistics.median(others)) if others else 1.0
        if slow <= self._terms.slow_factor * usual:
            return ""
        return f"{slow:.1f} times slower than predicted"

    def _eject(self, lane: Lane, why: str, view: FleetView, now_ms: float) -> None:
        replicas = list(_present(view, lane.model))
        num_ejected = sum(self._lane_is_ejected(lane.model, device_id) for device_id in replicas)
        allowed = max(1, int(self._terms.ejected_share * len(replicas)))
        if num_ejected >= allowed or not self._any_fit(replicas, lane.model, without=lane):
            return
        quiet_ms = max(0.0, now_ms - lane.returned_ms)
        lane.strikes = max(0, lane.strikes - int(quiet_ms / self._terms.forgive_ms))
        for_ms = min(self._terms.ejection_cap_ms, self._terms.ejection_ms * 2**lane.strikes)
        lane.strikes += 1
        lane.ejection = Ejection(now_ms, now_ms + for_ms, why)
        lane.outcomes.clear()
        self._note(lane)

    def _spare_last(self, view: FleetView, now_ms: float) -> None:
        """Take back the ejected lane that is due first where no other device could serve."""
        for model in {lane.model for lane in self._unfit if lane.ejection is not None}:
            replicas = _present(view, model)
            if self._any_fit(replicas, model):
                continue
            ejected = [
                lane
                for device_id in _present(view, model)
                if (lane := self._by_model[model].get(device_id)) is not None
                and lane.ejection is not None
                and lane.suspicion is None
            ]
            if ejected:
                self._return(min(ejected, key=_ends_ms), now_ms)

    def _lane_is_ejected(self, model: str, device_id: DeviceId) -> bool:
        lane = self._by_model[model].get(device_id)
        return lane is not None and lane.ejection is not None

    def _any_fit(
        self, replicas: Iterable[DeviceId], model: str, *, without: Lane | None = None
    ) -> bool:
        lanes = self._by_model.get(model, {})
        for device_id in replicas:
            lane = lanes.get(device_id)
            if lane is None or (lane.fit and lane is not without):
                return True
        return False


def _ends_ms(lane: Lane) -> float:
    return 0.0 if lane.ejection is None else lane.ejection.until_ms


def _present(view: FleetView, model: str) -> Iterator[DeviceId]:
    """Devices that serve the model now, but for what this hub thinks of their health."""
    for device in view.devices.values():
        served = device.models.get(model)
        if (
            served is not None
            and device.state is DeviceState.READY
            and (served.ready or served.unwell)
        ):
            yield device.device_id
