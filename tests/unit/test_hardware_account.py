from __future__ import annotations

import pytest

from agent.hardware.account import Charge, EnergyAccount, Work
from agent.hardware.energy import Meters, PowerSource


class Device:
    """A device that draws `watts` now, with its account; time moves by `after`."""

    def __init__(self, estimated_w: float | None = 75.0, *, metered: bool = True) -> None:
        self.watts: float | None = 10.0
        self.now_s = 0.0
        source = PowerSource("board", lambda _: self.watts, 0.5)
        self.account = EnergyAccount(Meters([[source]] if metered else []), estimated_w)

    def after(self, seconds: float, watts: float | None = None) -> Device:
        self.now_s += seconds
        self.account.sample(self.now_s)
        if watts is not None:
            self.watts = watts
            self.account.sample(self.now_s)
        return self

    def begin(self, name: str) -> None:
        self.account.begin(name, self.now_s)

    def end(self, name: str, own_s: float, engine_s: float, model: str = "m") -> Charge | None:
        return self.account.charge(name, Work(model, own_s, engine_s), self.now_s)

    def serve(self, seconds: float, busy_w: float) -> Charge | None:
        """One request alone, then idle at 10 W."""
        self.after(0, busy_w).begin("alone")
        charge = self.after(seconds).end("alone", seconds, seconds)
        self.after(0, 10.0)
        return charge


def test_a_request_alone_gets_all_that_was_drawn():
    assert Device().serve(2.0, 30.0) == Charge(pytest.approx(60.0), estimated=False)


def test_requests_share_by_what_each_computed_and_the_shares_add_up():
    device = Device()
    device.after(0, 40.0).begin("a")
    device.begin("b")
    device.after(3.0)
    first, second = device.end("a", 2.0, 3.0), device.end("b", 1.0, 3.0)
    assert first == Charge(pytest.approx(80.0), estimated=False)
    assert second == Charge(pytest.approx(40.0), estimated=False)


def test_waiting_is_not_charged_once_idle_power_is_known():
    device = Device()
    device.serve(1.0, 30.0)
    device.after(10.0).begin("late")  # ten seconds at 10 W between the two
    device.after(2.0).after(0, 30.0).after(1.0)  # waits for two seconds, computes for one
    charge = device.end("late", 1.0, 1.0)
    assert charge == Charge(pytest.approx(30.0), estimated=False)


def test_waiting_counts_at_mean_power_while_idle_power_is_unknown():
    device = Device()
    device.begin("a")
    device.after(1.0).after(0, 30.0).after(1.0)
    assert device.end("a", 1.0, 1.0) == Charge(pytest.approx(20.0), estimated=False)


def test_without_a_meter_the_charge_is_an_estimate():
    device = Device(metered=False)
    device.begin("a")
    assert device.after(4.0).end("a", 2.0, 3.0) == Charge(150.0, estimated=True)


def test_without_a_meter_and_an_estimate_there_is_no_charge():
    device = Device(None, metered=False)
    device.begin("a")
    assert device.after(1.0).end("a", 1.0, 1.0) is None


def test_a_meter_that_falls_silent_gives_way_to_the_estimate():
    device = Device()
    device.begin("a")
    device.after(1.0)
    device.watts = None
    assert device.after(1.0).end("a", 2.0, 2.0) == Charge(150.0, estimated=True)


def test_requests_too_short_for_the_meter_are_estimated_from_what_it_showed_before():
    device = Device()
    device.serve(2.0, 30.0)
    device.begin("short")
    assert device.after(0.1).end("short", 0.1, 0.1) == Charge(pytest.approx(3.0), estimated=True)


def test_engines_that_compute_side_by_side_share_the_device():
    device = Device(metered=False)
    device.account.note_engine("other", 0.0, 0.0)
    device.begin("a")
    device.after(2.0)
    device.account.note_engine("other", 2.0, 2.0)
    assert device.end("a", 2.0, 2.0) == Charge(75.0, estimated=True)


def test_an_engine_that_started_again_counts_anew():
    device = Device(metered=False)
    for compute_s, now_s in ((5.0, 0.0), (6.0, 1.0), (0.0, 2.0)):
        device.account.note_engine("other", compute_s, now_s)
    device.begin("a")
    assert device.after(2.0).end("a", 2.0, 2.0) == Charge(150.0, estimated=True)


def test_forgotten_requests_leave_nothing():
    device = Device()
    device.begin("a")
    device.begin("b")
    device.account.forget(["a", "b", "never"], device.now_s)
    assert device.account.num_open == 0
