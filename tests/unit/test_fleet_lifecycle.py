"""A device's life: leases, epochs, drain, revocation; then random histories."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.fleet.lifecycle import LeaseTerms, Lifecycle
from orchestrator.fleet.lifecycle_events import (
    Close,
    CloseCause,
    Connected,
    DrainRequested,
    Enrolled,
    Event,
    Forgotten,
    GoodbyeReceived,
    HeartbeatReceived,
    Lost,
    MovedAway,
    Progressed,
    Removed,
    RestartAnnounced,
    SendDrain,
    StateChanged,
    StreamClosed,
    Tick,
)
from orchestrator.fleet.view import DeviceId, DeviceState

D = DeviceId("d1")
TERMS = LeaseTerms()


@pytest.fixture
def ready() -> Lifecycle:
    lifecycle = Lifecycle(TERMS)
    lifecycle.handle(Enrolled(D), 0)
    lifecycle.handle(Connected(D, 1), 0)
    assert lifecycle.state_of(D) is DeviceState.READY
    return lifecycle


def test_hello_makes_an_enrolled_device_ready() -> None:
    lifecycle = Lifecycle(TERMS)
    lifecycle.handle(Enrolled(D), 0)
    assert lifecycle.handle(Connected(D, 1), 5) == (
        StateChanged(D, DeviceState.ENROLLED, DeviceState.READY, "hello"),
    )
    assert lifecycle.is_current(D, 1)


def test_closed_stream_is_suspect_at_once_and_down_when_the_lease_ran_out(
    ready: Lifecycle,
) -> None:
    effects = ready.handle(StreamClosed(D, 1), 1_000)
    assert effects == (
        StateChanged(D, DeviceState.READY, DeviceState.SUSPECT, "stream closed"),
        Lost(D, 1),
    )
    ready.handle(Tick(), 9_999)
    assert ready.state_of(D) is DeviceState.SUSPECT
    ready.handle(Tick(), 10_000)
    assert ready.state_of(D) is DeviceState.DOWN


def test_down_device_is_ready_again_at_its_next_hello(ready: Lifecycle) -> None:
    ready.handle(StreamClosed(D, 1), 0)
    ready.handle(Tick(), 20_000)
    ready.handle(Connected(D, 2), 21_000)
    assert ready.state_of(D) is DeviceState.READY


def test_device_that_drains_to_restart_is_ready_with_its_next_hello(ready: Lifecycle) -> None:
    ready.handle(RestartAnnounced(D, 1), 0)
    assert ready.state_of(D) is DeviceState.DRAINING
    assert ready.returns(D)
    ready.handle(StreamClosed(D, 1), 10)
    assert ready.state_of(D) is DeviceState.SUSPECT
    assert SendDrain(D, 2) not in ready.handle(Connected(D, 2), 20)
    assert ready.state_of(D) is DeviceState.READY


def test_operators_drain_holds_for_a_device_that_drains_to_restart(ready: Lifecycle) -> None:
    ready.handle(RestartAnnounced(D, 1), 0)
    assert SendDrain(D, 1) in ready.handle(DrainRequested(D), 5)
    assert SendDrain(D, 2) in ready.handle(Connected(D, 2), 20)


def test_silent_device_is_suspect_then_ready_again_at_its_heartbeat(ready: Lifecycle) -> None:
    ready.handle(Tick(), 5_001)
    assert ready.state_of(D) is DeviceState.SUSPECT
    ready.handle(HeartbeatReceived(D, 1), 5_500)
    assert ready.state_of(D) is DeviceState.READY


def test_lease_of_a_connected_device_runs_out_and_its_late_heartbeat_changes_nothing(
    ready: Lifecycle,
) -> None:
    assert ready.handle(Tick(), 10_000) == (
        StateChanged(D, DeviceState.READY, DeviceState.DOWN, "lease ran out"),
        Close(D, 1, CloseCause.SILENT),
        Lost(D, 1),
    )
    assert ready.handle(HeartbeatReceived(D, 1), 10_001) == ()
    assert ready.state_of(D) is DeviceState.DOWN


def test_new_connection_replaces_the_old_one_and_fences_its_frames(ready: Lifecycle) -> None:
    assert ready.handle(Connected(D, 2), 100) == (
        Close(D, 1, CloseCause.REPLACED),
        Lost(D, 1),
    )
    assert not ready.is_current(D, 1)
    assert ready.handle(StreamClosed(D, 1), 200) == ()
    assert ready.handle(HeartbeatReceived(D, 1), 200) == ()
    assert ready.state_of(D) is DeviceState.READY


def test_connection_with_an_older_epoch_is_refused(ready: Lifecycle) -> None:
    ready.handle(Connected(D, 5), 0)
    assert ready.handle(Connected(D, 4), 0) == (Close(D, 4, CloseCause.REPLACED),)
    assert ready.is_current(D, 5)


def test_tokens_renew_the_lease_like_heartbeats(ready: Lifecycle) -> None:
    ready.handle(Progressed(D, 1), 9_000)
    ready.handle(Tick(), 12_000)
    assert ready.state_of(D) is DeviceState.READY


def test_drained_device_leaves_with_its_goodbye(ready: Lifecycle) -> None:
    effects = ready.handle(DrainRequested(D), 0)
    assert effects[-1] == SendDrain(D, 1)
    assert ready.state_of(D) is DeviceState.DRAINING
    assert ready.handle(DrainRequested(D), 0) == ()
    ready.handle(GoodbyeReceived(D, 1), 10)
    assert ready.state_of(D) is DeviceState.LEFT


def test_draining_device_that_reconnects_is_told_to_drain_again(ready: Lifecycle) -> None:
    ready.handle(DrainRequested(D), 0)
    ready.handle(StreamClosed(D, 1), 10)
    assert ready.handle(Connected(D, 2), 20) == (SendDrain(D, 2),)
    assert ready.state_of(D) is DeviceState.DRAINING


def test_revoked_device_never_comes_back(ready: Lifecycle) -> None:
    effects = ready.handle(Removed(D), 0)
    assert Close(D, 1, CloseCause.REVOKED) in effects
    assert Lost(D, 1) in effects
    for event in (HeartbeatReceived(D, 1), Progressed(D, 1), DrainRequested(D), Removed(D)):
        assert ready.handle(event, 1) == ()
    assert ready.handle(Connected(D, 2), 2) == (Close(D, 2, CloseCause.REVOKED),)
    assert ready.state_of(D) is DeviceState.REVOKED


def test_device_of_an_earlier_hub_gets_one_lease_to_come_back() -> None:
    lifecycle = Lifecycle(TERMS)
    lifecycle.handle(Enrolled(D, DeviceState.READY), 100)
    assert lifecycle.state_of(D) is DeviceState.SUSPECT
    lifecycle.handle(Tick(), 10_100)
    assert lifecycle.state_of(D) is DeviceState.DOWN


def test_device_that_moved_to_another_hub_is_closed_and_forgotten(ready: Lifecycle) -> None:
    assert ready.handle(MovedAway(D, 2), 10) == (
        Close(D, 1, CloseCause.REPLACED),
        Lost(D, 1),
        Forgotten(D),
    )
    assert ready.state_of(D) is None
    assert ready.handle(HeartbeatReceived(D, 1), 20) == ()
    assert ready.handle(Tick(), 1e9) == ()


def test_device_that_came_back_from_another_hub_stays(ready: Lifecycle) -> None:
    ready.handle(Connected(D, 3), 5)
    assert ready.handle(MovedAway(D, 2), 10) == ()
    assert ready.state_of(D) is DeviceState.READY


def test_restored_device_keeps_the_epoch_that_fences_older_ones() -> None:
    lifecycle = Lifecycle(TERMS)
    lifecycle.handle(Enrolled(D, DeviceState.READY, 7), 0)
    assert lifecycle.handle(Connected(D, 7), 1) == (Close(D, 7, CloseCause.REPLACED),)
    lifecycle.handle(Connected(D, 8), 2)
    assert lifecycle.is_current(D, 8)


@dataclass(frozen=True)
class Step:
    event: Event
    after_ms: float


_ids = st.sampled_from([DeviceId("a"), DeviceId("b")])
_epochs = st.integers(1, 6)
_events = st.one_of(
    st.builds(Enrolled, _ids, st.sampled_from(list(DeviceState))),
    *(
        st.builds(kind, _ids, _epochs)
        for kind in (
            Connected,
            HeartbeatReceived,
            Progressed,
            StreamClosed,
            GoodbyeReceived,
            RestartAnnounced,
        )
    ),
    st.builds(DrainRequested, _ids),
    st.builds(Removed, _ids),
    st.builds(MovedAway, _ids, _epochs),
    st.just(Tick()),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.builds(Step, _events, st.floats(0, 12_000)), max_size=60))
def test_any_history_keeps_the_invariants(steps: list[Step]) -> None:
    lifecycle = Lifecycle(TERMS)
    now_ms = 0.0
    open_epochs: dict[DeviceId, set[int]] = {}
    revoked: set[DeviceId] = set()
    for step in steps:
        now_ms += step.after_ms
        before = {d: lifecycle.epoch_of(d) for d in ("a", "b")}
        effects = lifecycle.handle(step.event, now_ms)
        lifecycle.check_integrity()
        forgotten = {e.device_id for e in effects if isinstance(e, Forgotten)}
        assert not forgotten & revoked
        for device_id, epoch in before.items():
            assert lifecycle.epoch_of(DeviceId(device_id)) >= epoch or device_id in forgotten
        for effect in effects:
            if isinstance(effect, StateChanged):
                assert effect.old is not DeviceState.REVOKED
                if effect.new is DeviceState.REVOKED:
                    revoked.add(effect.device_id)
        event = step.event
        if isinstance(event, Connected) and lifecycle.is_current(event.device_id, event.epoch):
            open_epochs.setdefault(event.device_id, set()).add(event.epoch)
        for effect in effects:
            if isinstance(effect, Lost):
                assert effect.epoch in open_epochs[effect.device_id]
                open_epochs[effect.device_id].discard(effect.epoch)
        # One connection at most is ever open for a device, and none for a revoked one.
        for device_id, epochs in open_epochs.items():
            assert len(epochs) <= 1
            assert not (device_id in revoked and epochs)
            assert epochs == ({e for e in epochs if lifecycle.is_current(device_id, e)})
    lifecycle.handle(Tick(), now_ms + TERMS.lease_ms)
    for device_id in (DeviceId("a"), DeviceId("b")):
        assert lifecycle.state_of(device_id) not in (DeviceState.READY, DeviceState.SUSPECT)
