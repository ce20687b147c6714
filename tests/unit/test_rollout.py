"""One device through a rollout, batch after batch, by values alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.fleet.view import DeviceId
from orchestrator.rollout.following import Act, Seen, advance, follow
from orchestrator.rollout.model import (
    Outcome,
    Phase,
    Rollout,
    Target,
    rollout_from,
    target_from,
    to_json,
)
from orchestrator.rollout.selection import batch_size, select
from shoal.errors import ShoalError

ROLLOUT = Rollout("r", "2", "2-abc", (("w.whl", "ff"),), 2, 0, 300, 60, 0)
DUE = Target(DeviceId("d"), "pi", 0, Phase.DUE, deadline_unix_ms=60_000)
OLD = Seen(1, True, "1-old", "", "", "", "", "", "", ("m",))
ON_TRIAL = replace(OLD, epoch=2, release="2-abc", trial="2-abc")


def ordered() -> Target:
    target, act = follow(DUE, OLD, ROLLOUT, 1_000)
    assert act is Act.ORDER
    assert (target.phase, target.models, target.epoch) == (Phase.ORDERED, ("m",), 1)
    return target


def test_device_is_confirmed_once_it_serves_what_it_served_before() -> None:
    target = ordered()
    for seen, act in [
        (replace(OLD, progress="installing"), Act.NOTHING),
        (replace(ON_TRIAL, models=()), Act.NOTHING),
        (replace(ON_TRIAL, ready=False), Act.NOTHING),
        (ON_TRIAL, Act.PROVE),
        (replace(ON_TRIAL, proven=True), Act.CONFIRM),
    ]:
        target, done = follow(target, seen, ROLLOUT, 2_000)
        assert done is act
    target, _ = follow(target, replace(ON_TRIAL, trial=""), ROLLOUT, 3_000)
    assert target.phase is Phase.KEPT


@pytest.mark.parametrize(
    ("seen", "phase"),
    [
        (replace(OLD, release="2-abc"), Phase.CURRENT),
        (replace(OLD, ready=False), Phase.SKIPPED),
        (replace(OLD, refusal="too old"), Phase.SKIPPED),
    ],
)
def test_device_that_needs_or_takes_no_order_gets_none(seen: Seen, phase: Phase) -> None:
    target, act = follow(DUE, seen, ROLLOUT, 1_000)
    assert (target.phase, act) == (phase, Act.NOTHING)


@pytest.mark.parametrize(
    ("seen", "phase"),
    [
        (replace(OLD, progress="failed", progress_failure="no space"), Phase.REFUSED),
        (replace(OLD, epoch=2, failed_release="2-abc", failure="ended"), Phase.ROLLED_BACK),
        # What an earlier rollout of the same version led to.
        (replace(OLD, failed_release="2-abc", failure="ended"), Phase.ORDERED),
    ],
)
def test_what_went_wrong_is_told_apart(seen: Seen, phase: Phase) -> None:
    assert follow(ordered(), seen, ROLLOUT, 2_000)[0].phase is phase


def test_order_is_given_again_on_a_new_connection_but_not_while_it_restarts() -> None:
    target, act = follow(ordered(), replace(OLD, epoch=2), ROLLOUT, 2_000)
    assert (act, target.epoch) == (Act.ORDER, 2)
    restarts = replace(OLD, epoch=2, trial="2-abc")
    assert follow(ordered(), restarts, ROLLOUT, 2_000)[1] is Act.NOTHING


def test_draining_device_must_be_back_within_its_times() -> None:
    target, _ = follow(ordered(), replace(OLD, progress="draining"), ROLLOUT, 2_000)
    assert target.deadline_unix_ms == 2_000 + (300 + 60 + 60) * 1_000
    _, late = advance(ROLLOUT, {target.device_id: target}, target.deadline_unix_ms)
    assert [each.phase for each in late] == [Phase.LOST]


def fleet(*phases: Phase) -> dict[DeviceId, Target]:
    return {
        DeviceId(f"d{i}"): Target(DeviceId(f"d{i}"), f"n{i}", i, phase, deadline_unix_ms=10**9)
        for i, phase in enumerate(phases)
    }


def test_batches_follow_one_another() -> None:
    waiting = fleet(*[Phase.WAITING] * 3)
    _, batch = advance(ROLLOUT, waiting, 0)
    assert [(each.name, each.phase) for each in batch] == [("n0", Phase.DUE), ("n1", Phase.DUE)]
    assert advance(ROLLOUT, fleet(Phase.KEPT, Phase.ORDERED, Phase.WAITING), 0) == (ROLLOUT, ())
    _, batch = advance(ROLLOUT, fleet(Phase.KEPT, Phase.SKIPPED, Phase.WAITING), 0)
    assert [each.name for each in batch] == ["n2"]


@pytest.mark.parametrize(
    ("phases", "cancelled", "outcome"),
    [
        ((Phase.KEPT, Phase.CURRENT), False, Outcome.DONE),
        ((Phase.KEPT, Phase.ROLLED_BACK, Phase.WAITING), False, Outcome.STOPPED),
        ((Phase.KEPT, Phase.WAITING), True, Outcome.CANCELLED),
        ((Phase.KEPT, Phase.ORDERED, Phase.WAITING), True, Outcome.RUNNING),
    ],
)
def test_how_it_ends(phases: tuple[Phase, ...], cancelled: bool, outcome: Outcome) -> None:
    after, changed = advance(replace(ROLLOUT, cancelled=cancelled), fleet(*phases), 7)
    assert (after.outcome, changed) == (outcome, ())


def test_values_survive_the_store() -> None:
    assert rollout_from(to_json(ROLLOUT)) == ROLLOUT
    assert target_from(to_json(ordered())) == ordered()


def test_selectors_and_batches() -> None:
    devices = [
        {"id": str(i), "name": f"hall-{i}", "class": c, "agent_version": "1", "state": "READY"}
        for i, c in enumerate(["gpu", "arm_cpu", "arm_cpu"])
    ]
    devices.append(devices[0] | {"name": "gone", "state": "LEFT"})
    labels = {"1": {"site": "lab"}}
    for selector, names in [
        ("class=arm_cpu,name=hall-[12]", ["hall-1", "hall-2"]),
        ("site=lab", ["hall-1"]),
        ("all", ["hall-0", "hall-1", "hall-2"]),
    ]:
        assert [device["name"] for device in select(devices, selector, labels)] == names
    with pytest.raises(ShoalError):
        select(devices, "everything", labels)
    assert (batch_size("10%", 3), batch_size("10%", 40), batch_size("5", 2)) == (1, 4, 5)
    for wrong in ("0", "x", "101%"):
        with pytest.raises(ShoalError):
            batch_size(wrong, 3)
