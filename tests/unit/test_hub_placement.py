"""Placement without I/O: relay, failover, stalls; then random histories."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.fleet.view import DeviceId, DeviceState
from orchestrator.hub.session import GatewaySession
from shoal.v1 import inference_pb2
from tests.harness.hub_core import HubCore, updates_of
from tests.harness.hub_rig import MODEL, delta, failed, finished

CRASHED = inference_pb2.FAILURE_REASON_ENGINE_CRASHED
OVERLOADED = inference_pb2.FAILURE_REASON_OVERLOADED
DEVICE_LOST = inference_pb2.FAILURE_REASON_DEVICE_LOST


def frame(*updates: inference_pb2.SequenceUpdate) -> inference_pb2.InferenceFrame:
    return inference_pb2.InferenceFrame(updates=updates)


@pytest.fixture
def session() -> GatewaySession:
    return GatewaySession("g", 1_000)


async def test_frame_for_one_session_is_passed_on_as_it_is(session: GatewaySession) -> None:
    core = HubCore(1)
    core.submit(session, "a")
    core.submit(session, "b")
    await session.take()
    produced = frame(delta("a", "1"), delta("b", "2"))
    produced.load.running = 2
    core.placement.on_frame(DeviceId("d0"), 1, produced)
    (relayed,) = await session.take()
    assert relayed is produced
    assert not relayed.HasField("load")


async def test_frame_of_a_stream_that_the_request_left_is_dropped(
    session: GatewaySession,
) -> None:
    core = HubCore(2)
    core.submit(session, "a")
    first = core.lines.sent[0][0]
    core.disconnect(first)
    core.placement.on_frame(first, 1, frame(delta("a", "late")))
    kinds = [(u.placed.attempt, u.HasField("delta")) for u in await updates_of(session)]
    assert kinds == [(1, False), (2, False)]


async def test_engine_crash_after_a_token_is_told_and_not_retried(
    session: GatewaySession,
) -> None:
    core = HubCore(2)
    core.submit(session, "a")
    device_id = core.lines.sent[0][0]
    core.placement.on_frame(device_id, 1, frame(delta("a", "x"), failed("a", CRASHED)))
    assert (await updates_of(session))[-1].failed.reason == CRASHED
    assert len(core.lines.sent) == 1
    assert core.placement.num_active == 0
    assert core.records.kept[0].outcome == "engine_crashed"


async def test_router_learns_what_the_request_met_as_the_hub_saw_it(
    session: GatewaySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = HubCore(1)
    router, first_tokens, outcomes = core.placement._router, [], []
    monkeypatch.setattr(router, "observe_ttft", lambda *seen: first_tokens.append(seen))
    monkeypatch.setattr(router, "observe", outcomes.append)
    core.submit(session, "a")
    core.submit(session, "b")
    core.clock.now_ms += 700
    core.placement.on_frame(DeviceId("d0"), 1, frame(delta("b", "x"), finished("b")))
    ((model, actual_ms, prediction),) = first_tokens
    assert (model, actual_ms) == (MODEL, 700)
    assert prediction.ttft_ms > 0
    # It came to a device that had another already.
    assert [outcome.ahead_requests for outcome in outcomes] == [1]


async def test_attempts_are_bounded(session: GatewaySession) -> None:
    core = HubCore(9)
    core.submit(session, "a")
    while core.placement.num_active:
        device_id = core.lines.sent[-1][0]
        core.placement.on_frame(device_id, 1, frame(failed("a", OVERLOADED)))
    assert len(core.lines.sent) == 4
    assert (await updates_of(session))[-1].failed.reason == OVERLOADED
    assert [attempt.failed for attempt in core.records.kept[0].attempts] == ["overloaded"] * 4


async def test_device_whose_stream_takes_nothing_is_passed_over(session: GatewaySession) -> None:
    core = HubCore(2)
    del core.lines.epochs[DeviceId("d0")]
    for number in range(4):
        core.submit(session, f"r{number}")
    assert {device_id for device_id, _ in core.lines.sent} == {"d1"}


async def test_request_id_that_is_running_is_refused(session: GatewaySession) -> None:
    core = HubCore(1)
    core.submit(session, "a")
    core.submit(session, "a")
    placed, refused = await updates_of(session)
    assert placed.HasField("placed")
    assert refused.failed.param == "request_id"
    assert core.placement.num_active == 1


async def test_busy_device_that_produces_for_others_is_not_suspected(
    session: GatewaySession,
) -> None:
    core = HubCore(1)
    core.submit(session, "a")
    core.submit(session, "b")
    for _ in range(30):
        core.wait(1)
        core.placement.on_frame(DeviceId("d0"), 1, frame(delta("b", "x")))
    assert core.unwell("d0") == ""
    core.wait(3)
    assert core.unwell("d0").startswith("suspect: no token for 2.")


async def test_silent_device_loses_waiting_requests_first_and_streams_later(
    session: GatewaySession,
) -> None:
    core = HubCore(2)
    for name in "abcd":
        core.submit(session, name)
    on_d0 = [sent.submit.request_id for device_id, sent in core.lines.sent if device_id == "d0"]
    stream, waiting = on_d0
    core.placement.on_frame(DeviceId("d0"), 1, frame(delta(stream, "x")))
    core.wait(3)
    assert core.lines.sent[-1][1].submit.request_id == waiting
    assert core.lines.sent[-1][0] == "d1"
    assert core.placement.num_active == 4
    core.wait(3)
    last = (await updates_of(session))[-1]
    assert (last.request_id, last.failed.reason) == (stream, DEVICE_LOST)
    assert "after the first token" in last.failed.message
    await _records_say(core, waiting, "is suspect: no token for")


async def _records_say(core: HubCore, request_id: str, why: str) -> None:
    core.placement.on_frame(DeviceId("d1"), 1, frame(delta(request_id, "x"), finished(request_id)))
    record = core.records.kept[-1]
    assert [attempt.failed for attempt in record.attempts] == ["device_lost", ""]
    lost = next(c for c in record.decision.candidates if c.device_id == "d0")
    assert (lost.rejected or "").startswith(why)


async def test_stream_goes_on_when_its_device_comes_back_in_time(session: GatewaySession) -> None:
    core = HubCore(1)
    core.submit(session, "a")
    core.placement.on_frame(DeviceId("d0"), 1, frame(delta("a", "x")))
    core.wait(3)
    assert core.unwell("d0")
    core.placement.on_frame(DeviceId("d0"), 1, frame(delta("a", "y")))
    core.wait(0.25)
    assert not core.unwell("d0")
    core.placement.on_frame(DeviceId("d0"), 1, frame(finished("a")))
    assert core.records.kept[0].outcome == "finished"


async def test_answered_probe_readmits_a_device_that_lost_all_its_requests(
    session: GatewaySession,
) -> None:
    core = HubCore(2)
    core.submit(session, "a")
    device_id = core.lines.sent[0][0]
    core.wait(11)
    (probe,) = [
        sent.submit.request_id
        for to, sent in core.lines.sent
        if to == device_id and sent.submit.request_id.startswith("shoal-probe")
    ]
    assert core.unwell(device_id)
    core.placement.on_frame(device_id, 1, frame(failed(probe, OVERLOADED)))
    core.wait(3)
    again = core.lines.sent[-1][1].submit.request_id
    assert again.startswith("shoal-probe")
    assert again != probe
    core.placement.on_frame(device_id, 1, frame(delta(again, "x"), finished(again)))
    core.wait(0.25)
    assert not core.unwell(device_id)


async def test_request_of_a_silent_device_waits_for_the_other_that_is_full(
    session: GatewaySession,
) -> None:
    core = HubCore(2, slots=1, places=0)
    core.submit(session, "a")
    core.submit(session, "b")
    silent = core.lines.sent[0][0]
    other = core.lines.sent[1][0]
    for _ in range(11):
        core.wait(1)
        core.placement.on_frame(other, 1, frame(delta("b", "x")))
    assert core.unwell(silent)
    core.placement.on_frame(silent, 1, frame(delta("a", "late"), finished("a")))
    core.placement.on_frame(other, 1, frame(finished("b")))
    assert core.lines.sent[-1][1].submit.request_id == "a"
    assert core.lines.sent[-1][0] == other


async def test_only_device_keeps_its_request_until_it_is_given_up(session: GatewaySession) -> None:
    core = HubCore(1)
    core.submit(session, "a")
    core.wait(12)
    assert core.unwell("d0")
    assert core.placement.num_active == 1
    core.wait(10)
    assert core.placement.num_active == 0
    assert (await updates_of(session))[-1].failed.reason == DEVICE_LOST


async def test_device_that_fails_every_request_is_ejected_for_a_while(
    session: GatewaySession,
) -> None:
    core = HubCore(2)
    number = 0
    while not core.unwell("d0") and number < 20:
        number += 1
        core.submit(session, f"r{number}")
        for device_id, sent in list(core.lines.sent):
            name = sent.submit.request_id
            update = failed(name, CRASHED) if device_id == "d0" else finished(name)
            core.placement.on_frame(device_id, 1, frame(update))
        core.wait(1)
    assert core.unwell("d0") == "ejected for 5.0 s: requests failed 3 times in a row"
    assert core.unwell("d1") == ""
    # Who names the device gets it all the same.
    core.submit(session, "pinned", hints=inference_pb2.RoutingHints(device="d0"))
    assert core.lines.sent[-1][0] == "d0"
    core.placement.on_frame(DeviceId("d0"), 1, frame(finished("pinned")))
    core.wait(6)
    assert core.unwell("d0") == ""


async def test_other_session_cannot_cancel(session: GatewaySession) -> None:
    core = HubCore(1)
    core.submit(session, "a")
    core.placement.cancel(GatewaySession("other", 10), "a")
    assert core.placement.num_active == 1


async def test_session_that_is_not_read_is_ended_and_keeps_no_memory() -> None:
    core = HubCore(1)
    session = GatewaySession("slow", 5)
    core.submit(session, "a")
    for _ in range(10):
        core.placement.on_frame(DeviceId("d0"), 1, frame(delta("a", "x")))
    assert session.overflowed
    assert await session.take() == []


@dataclass(frozen=True)
class Act:
    kind: str
    number: int
    device: int


STEPS_OF_DEVICES = ["delta", "finish", "crash", "refuse", "lose", "connect", "wait", "probe"]
_acts = st.builds(
    Act,
    # Twice as often: what the others need to have happened before.
    st.sampled_from(["submit", "submit", "delta", *STEPS_OF_DEVICES, "cancel", "gone"]),
    st.integers(0, 7),
    st.integers(0, 2),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_acts, max_size=80), st.sampled_from([(2, 16), (1, 0)]))
def test_any_history_tells_each_request_once_and_in_order(
    acts: list[Act], room: tuple[int, int]
) -> None:
    asyncio.run(_replay(acts, room))


async def _replay(acts: list[Act], room: tuple[int, int]) -> None:
    hints = inference_pb2.RoutingHints(hedge_after=1.0)
    core = HubCore(3, slots=room[0], places=room[1])
    sessions = [GatewaySession("g0", 100_000), GatewaySession("g1", 100_000)]
    epochs = {DeviceId(f"d{n}"): 1 for n in range(3)}
    generation = 0
    names: dict[int, str] = {}
    for act in acts:
        device_id = DeviceId(f"d{act.device}")
        epoch = epochs[device_id]
        name = names.get(act.number, "none")
        match act.kind:
            case "submit":
                generation += 1
                names[act.number] = f"r{act.number}-{generation}"
                hedged = {"hints": hints} if act.number > 3 else {}
                core.submit(sessions[act.number % 2], names[act.number], **hedged)
            case "cancel":
                core.placement.cancel(sessions[act.number % 2], name)
            case "delta":
                core.placement.on_frame(device_id, epoch, frame(delta(name, "x")))
            case "finish":
                core.placement.on_frame(device_id, epoch, frame(finished(name)))
            case "crash":
                core.placement.on_frame(device_id, epoch, frame(failed(name, CRASHED)))
            case "refuse":
                core.placement.on_frame(device_id, epoch, frame(failed(name, OVERLOADED)))
            case "lose":
                if device_id in core.lines.epochs:
                    core.disconnect(device_id)
            case "connect":
                if device_id not in core.lines.epochs:
                    epochs[device_id] += 1
                    core.connect(device_id, epochs[device_id])
            case "wait":
                core.clock.now_ms += 1_000 if act.number % 2 else 7_000
                core.placement.tick()
            case "probe":
                for probe in core.probes():
                    core.placement.on_frame(device_id, epoch, frame(delta(probe, "x")))
            case "gone":
                core.placement.cancel_session(sessions[act.number % 2])
        core.views.check_integrity()
        core.placement.watch.check_integrity()
        in_flight = sum(core.views.in_flight(DeviceId(f"d{n}")) for n in range(3))
        in_hub = len(core.placement.waiting) - len(core.placement.hedges)
        assert in_flight == core.placement.num_active - in_hub
    core.placement.tick()
    _check_no_room_is_left(core)
    for session in sessions:
        core.placement.cancel_session(session)
        session.close()
        _check_stream([u for f in await session.take() for u in f.updates])
    assert core.placement.num_active == 0
    assert len(core.records.kept) == generation


def _check_no_room_is_left(core: HubCore) -> None:
    """Nobody waits while a device could take one more, but those it failed already."""
    free = {
        view.device_id
        for view in core.views.fleet.devices.values()
        if view.state is DeviceState.READY
        and view.models[MODEL].ready
        and view.in_flight.get(MODEL, 0) < view.models[MODEL].slots + view.max_waiting
    }
    entry = core.placement.waiting.next(MODEL, core.clock.now_ms, ())
    assert not free or entry is None or free <= entry.lane.excluded


def _check_stream(updates: list[inference_pb2.SequenceUpdate]) -> None:
    """Each request: placed with rising attempts, tokens only then, at most one end, the last."""
    attempts: dict[str, int] = {}
    with_tokens: set[str] = set()
    ended: set[str] = set()
    for update in updates:
        name = update.request_id
        assert name not in ended
        if update.HasField("placed"):
            assert name not in with_tokens
            assert update.placed.attempt > attempts.get(name, 0)
            attempts[name] = update.placed.attempt
        if update.HasField("delta"):
            assert name in attempts
            with_tokens.add(name)
        if update.HasField("finished") or update.HasField("failed"):
            ended.add(name)
