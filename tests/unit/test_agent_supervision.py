from __future__ import annotations

import random

import pytest

from agent.session import supervision as sup
from agent.session.supervision import EngineState


def started() -> sup.Supervision:
    machine = sup.Supervision()
    assert sup.Spawn() in machine.handle(sup.Start(), 0.0)
    return machine


def ready() -> sup.Supervision:
    machine = started()
    assert machine.handle(sup.BecameReady(), 1.0) == [sup.Report(EngineState.READY)]
    return machine


def test_crash_fails_what_runs_and_restarts_after_a_fifth_of_a_second() -> None:
    machine = ready()
    effects = machine.handle(sup.Exited("killed by SIGKILL"), 100.0)
    assert effects == [
        sup.FailRunning("the engine ended: killed by SIGKILL"),
        sup.Report(EngineState.BACKING_OFF),
    ]
    assert machine.deadline() == pytest.approx(100.2)
    assert machine.handle(sup.Tick(), 100.1) == []
    assert machine.handle(sup.Tick(), 100.2) == [sup.Spawn()]


def test_model_that_can_never_be_served_is_tried_once() -> None:
    machine = started()
    effects = machine.handle(sup.Exited("no such tensor", hopeless=True), 1.0)
    assert effects[-1] == sup.Report(EngineState.FAILED, "cannot be served; last: no such tensor")
    machine.check_integrity()


def test_five_crashes_within_a_minute_fail_the_model_with_the_reason() -> None:
    machine = started()
    now = 0.0
    for _ in range(5):
        machine.handle(sup.BecameReady(), now)
        now += 1.0
        machine.handle(sup.Exited("killed by SIGSEGV"), now)
        now = machine.deadline() or now
        machine.handle(sup.Tick(), now)
    assert machine.state is EngineState.FAILED
    assert machine.failure == "crashed 5 times within 60 s; last: killed by SIGSEGV"


def test_crashes_far_apart_are_each_restarted() -> None:
    machine = started()
    for number in range(20):
        now = 30.0 * number
        machine.handle(sup.BecameReady(), now)
        machine.handle(sup.Exited("killed by SIGKILL"), now)
        machine.handle(sup.Tick(), machine.deadline() or now)
    assert machine.state is EngineState.STARTING


def test_three_failed_starts_fail_the_model_with_the_last_words() -> None:
    machine = started()
    for number in range(3):
        machine.handle(sup.Exited("not a GGUF file"), float(number))
        machine.handle(sup.Tick(), machine.deadline() or 0.0)
    assert machine.state is EngineState.FAILED
    assert machine.failure == "did not start in 3 tries; last: not a GGUF file"


def test_unresponsive_engine_is_killed_and_restarted_with_that_reason() -> None:
    machine = ready()
    assert machine.handle(sup.Unresponsive("no answer"), 2.0) == [
        sup.FailRunning("no answer"),
        sup.Kill(),
    ]
    effects = machine.handle(sup.Exited("killed by SIGKILL"), 2.1)
    assert effects[0] == sup.FailRunning("the engine ended: no answer")
    assert machine.state is EngineState.BACKING_OFF


def test_stop_asks_first_and_kills_when_that_does_not_help() -> None:
    machine = ready()
    assert sup.Terminate() in machine.handle(sup.Stop(), 10.0)
    assert machine.handle(sup.Tick(), 10.0 + sup.STOP_WITHIN_S) == [sup.Kill()]
    assert machine.handle(sup.Exited("killed by SIGKILL"), 16.0) == []
    assert machine.state is EngineState.STOPPED


def test_stop_during_backoff_starts_nothing_more() -> None:
    machine = ready()
    machine.handle(sup.Exited("x"), 5.0)
    machine.handle(sup.Stop(), 5.1)
    assert machine.handle(sup.Tick(), 60.0) == []
    assert machine.deadline() is None


@pytest.mark.parametrize("seed", range(200))
def test_any_sequence_of_events_keeps_one_child_at_most(seed: int) -> None:
    rng = random.Random(seed)
    machine = sup.Supervision()
    now, child = 0.0, False
    for _ in range(200):
        now += rng.choice([0.0, 0.1, 1.0, 10.0, 700.0])
        events: list[sup.Event] = [sup.Start(), sup.Tick(), sup.Tick()]
        if child:
            events += [sup.BecameReady(), sup.Exited("x"), sup.Unresponsive("y")]
        if rng.random() < 0.02:
            events = [sup.Stop()]
        event = rng.choice(events)
        if isinstance(event, sup.Exited):
            child = False
        for effect in machine.handle(event, now):
            if isinstance(effect, sup.Spawn):
                assert not child
                child = True
            elif isinstance(effect, (sup.Kill, sup.Terminate)):
                assert child
        machine.check_integrity()
        assert machine.has_child == child
