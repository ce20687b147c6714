"""Suspicion, ejection and the brake; then random histories."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config import HealthTerms
from orchestrator.fleet.health.bounds import first_token_bound_ms, next_token_bound_ms
from orchestrator.fleet.health.core import Health
from orchestrator.fleet.health.lanes import Judgement, Lane, Work
from orchestrator.fleet.health.outliers import Outcome, slowness
from orchestrator.fleet.view import (
    DeviceClass,
    DeviceId,
    DeviceState,
    DeviceView,
    FleetView,
    ServedModel,
)

TERMS = HealthTerms()
MODEL = "m"


def device(number: int, state: DeviceState = DeviceState.READY) -> DeviceView:
    model = ServedModel(MODEL, "f", 1, 1024, 4, 100.0, 20.0)
    name = f"d{number}"
    return DeviceView(DeviceId(name), name, DeviceClass.ARM_CPU, state, {MODEL: model})


class Fleet:
    """A health core over a fleet of `size` devices that all serve one model."""

    def __init__(self, size: int) -> None:
        self.health = Health(TERMS)
        self.now_ms = 1_000.0
        self.view = FleetView({DeviceId(f"d{n}"): device(n) for n in range(size)})
        self.owed: dict[Lane, float] = {}
        self.brake: list[str] = []

    def lane(self, number: int) -> Lane:
        return self.health.lane(DeviceId(f"d{number}"), MODEL)

    def owe(self, *numbers: int) -> None:
        for number in numbers:
            self.owed[self.lane(number)] = self.now_ms

    def progress(self, number: int) -> None:
        self.lane(number).last_progress_ms = self.now_ms

    def end(self, number: int, *, failed: bool, ratio: float | None = None) -> None:
        lane = self.lane(number)
        known = lane.outcomes.num_slow_in_row
        self.health.ended(lane, Outcome(self.now_ms, failed, ratio, known))

    def fail_thrice(self, number: int) -> None:
        for _ in range(3):
            self.end(number, failed=True)
            self.now_ms += 1_000

    def judge(self, after_ms: float = 250) -> Judgement:
        self.now_ms += after_ms
        work = [Work(lane, since_ms, 3_000, 400) for lane, since_ms in self.owed.items()]
        judgement = self.health.judge(work, self.view, self.now_ms)
        if judgement.brake is not None:
            self.brake.append(judgement.brake)
        return judgement

    def unfit(self) -> list[str]:
        return [lane.device_id for lane in self.health.lanes() if not lane.fit]


def test_silence_is_measured_against_the_devices_own_prediction() -> None:
    assert first_token_bound_ms(TERMS, 400, proven=True) == 3_000
    assert first_token_bound_ms(TERMS, 2_000, proven=True) == 8_000
    assert first_token_bound_ms(TERMS, 400, proven=False) == 10_000
    assert first_token_bound_ms(TERMS, 10_000, proven=True) == 30_000
    assert first_token_bound_ms(TERMS, 40_000, proven=True) == 60_000
    assert next_token_bound_ms(TERMS, 20, 0) == 2_500
    assert next_token_bound_ms(TERMS, 200, 1_000) == 5_000
    assert next_token_bound_ms(TERMS, 20, 100_000) == 150_000


def test_silent_lane_is_suspect_until_a_token_comes() -> None:
    fleet = Fleet(2)
    fleet.owe(0, 1)
    fleet.progress(0)
    fleet.judge(2_900)
    assert fleet.unfit() == []
    fleet.progress(1)
    assert fleet.judge(300).changed == (fleet.lane(0),)
    assert fleet.lane(0).condition(fleet.now_ms) == "suspect: no token for 3.2 s, expected 0.4 s"
    assert fleet.judge().changed == ()
    fleet.progress(0)
    assert fleet.judge().changed == (fleet.lane(0),)
    assert fleet.unfit() == []


def test_new_connection_or_reloaded_model_voids_a_suspicion() -> None:
    fleet = Fleet(1)
    fleet.owe(0)
    fleet.judge(4_000)
    assert fleet.health.renewed(DeviceId("d0"), "other") == []
    assert fleet.health.renewed(DeviceId("d0"), MODEL) == [fleet.lane(0)]
    assert fleet.unfit() == []


def test_outlier_is_ejected_longer_each_time_and_forgiven_later() -> None:
    fleet = Fleet(4)
    for for_ms in (5_000, 10_000, 20_000):
        fleet.fail_thrice(0)
        fleet.judge()
        ejection = fleet.lane(0).ejection
        assert ejection is not None
        assert ejection.until_ms - ejection.at_ms == for_ms
        assert ejection.reason == "requests failed 3 times in a row"
        fleet.judge(for_ms)
        assert fleet.unfit() == []
    fleet.judge(10 * 60_000)
    fleet.fail_thrice(0)
    fleet.judge()
    assert fleet.lane(0).condition(0).startswith("ejected for 5.0 s")


def test_half_failed_of_enough_is_an_outlier_and_of_few_is_not() -> None:
    fleet = Fleet(4)
    for failed in (True, False, True, False):
        fleet.end(0, failed=failed)
        fleet.now_ms += 1_000
    fleet.judge()
    assert fleet.unfit() == []
    fleet.end(0, failed=True)
    fleet.judge()
    assert fleet.lane(0).condition(0) == "ejected for 5.0 s: 3 of the last 5 requests failed"


def test_slow_against_its_prediction_is_ejected_only_when_the_others_are_not_slow_too() -> None:
    fleet = Fleet(2)
    for number in (0, 1):
        for _ in range(10):
            fleet.end(number, failed=False, ratio=6.0)
    fleet.judge()
    assert fleet.unfit() == []
    for _ in range(20):
        fleet.end(1, failed=False, ratio=1.1)
    fleet.end(0, failed=False, ratio=6.0)
    fleet.judge()
    assert fleet.lane(0).condition(0) == "ejected for 5.0 s: 6.0 times slower than predicted"


def test_requests_that_fail_together_are_one_failure() -> None:
    fleet = Fleet(2)
    for _ in range(8):
        fleet.end(0, failed=True)
    fleet.judge()
    assert fleet.unfit() == []


def test_slow_down_that_the_estimator_still_learns_is_no_fault() -> None:
    fleet = Fleet(2)
    for _ in range(20):
        fleet.health.ended(fleet.lane(0), Outcome(fleet.now_ms, False, 5.0, slow_known=0))
    fleet.judge()
    assert fleet.unfit() == []


def test_small_times_are_never_slow() -> None:
    assert slowness(200, 10, 15, 1) < 1
    assert slowness(2_000, 250, 20, 20) == 8


def test_ejection_spares_the_last_and_most_of_the_fleet() -> None:
    fleet = Fleet(10)
    for _ in range(3):
        for number in range(5):
            fleet.end(number, failed=True)
        fleet.now_ms += 1_000
    for number in range(10):
        fleet.progress(number)
    fleet.judge()
    assert fleet.unfit() == ["d0", "d1", "d2"]


def test_ejected_device_comes_back_when_the_last_other_is_lost() -> None:
    fleet = Fleet(2)
    fleet.fail_thrice(0)
    fleet.judge()
    assert fleet.unfit() == ["d0"]
    fleet.view = FleetView({**fleet.view.devices, DeviceId("d1"): device(1, DeviceState.DOWN)})
    fleet.judge()
    assert fleet.unfit() == []


def test_most_devices_silent_at_once_brakes_and_undoes() -> None:
    fleet = Fleet(5)
    fleet.owe(0, 1, 2, 3, 4)
    fleet.judge(2_000)
    for number in (2, 3, 4):
        fleet.progress(number)
    fleet.judge(1_500)
    assert fleet.unfit() == ["d0", "d1"]
    fleet.judge(2_000)
    assert fleet.unfit() == []
    assert fleet.brake[0].startswith("5 of 5 working devices look sick at once")
    for number in range(5):
        fleet.progress(number)
    fleet.judge(2_000)
    assert fleet.health.brake.is_on
    for number in range(5):
        fleet.progress(number)
    fleet.judge(3_000)
    assert fleet.brake[1:] == [""]


def test_devices_that_served_lately_count_against_the_brake() -> None:
    fleet = Fleet(12)
    fleet.owe(0, 1, 2, 3)
    fleet.judge(2_900)
    for number in range(4, 12):
        fleet.progress(number)
    fleet.judge()
    assert fleet.unfit() == ["d0", "d1", "d2", "d3"]


def test_brake_lets_go_when_the_devices_stay_silent_and_does_not_come_on_again() -> None:
    fleet = Fleet(4)
    fleet.owe(0, 1, 2, 3)
    fleet.judge(4_000)
    assert fleet.health.brake.is_on
    fleet.judge(30_000)
    assert not fleet.health.brake.is_on
    assert len(fleet.unfit()) == 4
    fleet.judge(1_000)
    assert not fleet.health.brake.is_on


@pytest.mark.parametrize("size", [2, 3])
def test_small_fleet_has_no_brake(size: int) -> None:
    fleet = Fleet(size)
    fleet.owe(*range(size))
    fleet.judge(4_000)
    assert len(fleet.unfit()) == size


@dataclass(frozen=True)
class Step:
    kind: str
    number: int
    after_ms: float


KINDS = ["owe", "owe", "settle", "progress", "fail", "fail", "fail", "finish", "slow"]
STATES = ["up", "down", "renew", "forget", "judge", "judge"]
_steps = st.builds(
    Step,
    st.sampled_from([*KINDS, *STATES]),
    st.integers(0, 5),
    st.sampled_from([0.0, 250.0, 3_100.0, 12_000.0]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_steps, max_size=120))
def test_any_history_keeps_the_invariants(steps: list[Step]) -> None:
    fleet = Fleet(6)
    for step in steps:
        was_braking = fleet.health.brake.is_on
        conditions = {lane: lane.condition(0) for lane in fleet.health.lanes()}
        _apply(fleet, step)
        judgement = fleet.judge(step.after_ms)
        fleet.health.check_integrity()
        lanes = list(fleet.health.lanes())
        # Everything that changed in the judgement is told.
        for lane in lanes:
            if lane.condition(0) != conditions.get(lane, "") and step.kind not in ("renew",):
                assert lane in judgement.changed
        present = {d.device_id for d in fleet.view.devices.values() if d.state is DeviceState.READY}
        ejected = [x for x in lanes if x.ejection is not None and x.device_id in present]
        # The cap is of those present when the last one was ejected.
        newly = [x for x in ejected if x.ejection and x.ejection.at_ms == fleet.now_ms]
        if newly:
            assert len(ejected) <= max(1, int(TERMS.ejected_share * len(present)))
        if any(lane.suspicion is None for lane in ejected):
            unfit = {lane.device_id for lane in lanes if not lane.fit}
            assert present - unfit, "the last device was ejected"
        # While it brakes nobody is newly suspected or ejected.
        if fleet.health.brake.is_on:
            assert fleet.health.brake.text
            for lane in lanes:
                assert lane.suspicion is None or lane.suspicion.at_ms < fleet.now_ms
                assert lane.ejection is None or lane.ejection.at_ms < fleet.now_ms
        assert (judgement.brake is None) == (was_braking == fleet.health.brake.is_on)
        for lane in lanes:
            if lane.ejection is not None:
                for_ms = lane.ejection.until_ms - lane.ejection.at_ms
                assert TERMS.ejection_ms <= for_ms <= TERMS.ejection_cap_ms
            if lane.suspicion is not None:
                assert lane.last_progress_ms <= lane.suspicion.at_ms


def _apply(fleet: Fleet, step: Step) -> None:
    number = step.number
    lane = fleet.lane(number)
    match step.kind:
        case "owe":
            fleet.owed.setdefault(lane, fleet.now_ms)
        case "settle":
            fleet.owed.pop(lane, None)
        case "progress":
            fleet.progress(number)
        case "fail":
            fleet.end(number, failed=True)
        case "finish":
            fleet.end(number, failed=False, ratio=1.0)
        case "slow":
            fleet.end(number, failed=False, ratio=9.0)
        case "renew":
            fleet.health.renewed(lane.device_id)
        case "forget":
            fleet.owed.pop(lane, None)
            fleet.health.forget(lane.device_id)
        case "up" | "down":
            state = DeviceState.READY if step.kind == "up" else DeviceState.DOWN
            changed = replace(fleet.view.devices[lane.device_id], state=state)
            fleet.view = FleetView({**fleet.view.devices, lane.device_id: changed})
