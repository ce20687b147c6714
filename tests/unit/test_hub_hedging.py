"""Hedging without I/O: who wins, what it costs, and when it is not done."""

from __future__ import annotations

import pytest

from orchestrator.fleet.view import DeviceId
from orchestrator.hub.session import GatewaySession
from shoal.v1 import inference_pb2
from tests.harness.hub_core import HubCore, updates_of
from tests.harness.hub_rig import delta, failed, finished

CRASHED = inference_pb2.FAILURE_REASON_ENGINE_CRASHED


def frame(*updates: inference_pb2.SequenceUpdate) -> inference_pb2.InferenceFrame:
    return inference_pb2.InferenceFrame(updates=updates)


@pytest.fixture
def session() -> GatewaySession:
    return GatewaySession("g", 1_000)


class Race:
    """A request that was hedged: the first device and the second."""

    def __init__(self, session: GatewaySession, **hints: object) -> None:
        self.core = HubCore(3)
        self.session = session
        hedging = inference_pb2.RoutingHints(hedge_after=2.0, **hints)  # type: ignore[arg-type]
        self.core.submit(session, "a", hints=hedging)
        self.core.wait(0.75)
        self.devices = [to for to, sent in self.core.lines.sent if sent.submit.request_id == "a"]

    def hear(self, index: int, *updates: inference_pb2.SequenceUpdate) -> None:
        self.core.placement.on_frame(self.devices[index], 1, frame(*updates))

    def cancelled(self) -> list[DeviceId]:
        return [to for to, sent in self.core.lines.sent if sent.cancel.request_id == "a"]

    def attempts(self) -> list[tuple[str, str]]:
        record = self.core.records.kept[0]
        return [(attempt.device_id, attempt.failed) for attempt in record.attempts]

    def reserved(self) -> int:
        return sum(self.core.views.in_flight(DeviceId(f"d{n}")) for n in range(3))


async def test_second_device_wins_with_the_first_token(session: GatewaySession) -> None:
    race = Race(session)
    first, second = race.devices
    race.hear(1, delta("a", "x"))
    assert race.cancelled() == [first]
    race.hear(0, delta("a", "late"))
    race.hear(1, delta("a", "y"), finished("a"))
    updates = await updates_of(session)
    assert [u.placed.device_id for u in updates if u.HasField("placed")] == [first, second]
    assert "hedged after" in updates[1].placed.reason
    assert [u.delta.text for u in updates if u.HasField("delta")] == ["x", "y"]
    assert race.attempts() == [(first, "outrun"), (second, "")]
    assert race.reserved() == 0


async def test_first_device_wins_and_the_second_is_cancelled(session: GatewaySession) -> None:
    race = Race(session)
    first, second = race.devices
    race.hear(0, delta("a", "x"))
    assert race.cancelled() == [second]
    race.hear(1, delta("a", "late"))
    race.hear(0, finished("a"))
    assert [u.delta.text for u in await updates_of(session) if u.HasField("delta")] == ["x"]
    assert race.attempts() == [(second, "outrun"), (first, "")]
    assert race.reserved() == 0


async def test_crash_of_the_first_leaves_the_second_in_charge(session: GatewaySession) -> None:
    race = Race(session)
    race.hear(0, failed("a", CRASHED))
    race.hear(1, delta("a", "x"), finished("a"))
    assert race.attempts() == [(race.devices[0], "engine_crashed"), (race.devices[1], "")]
    assert race.reserved() == 0


async def test_crash_of_the_second_changes_nothing(session: GatewaySession) -> None:
    race = Race(session)
    race.hear(1, failed("a", CRASHED))
    race.core.disconnect(race.devices[1])
    race.hear(0, delta("a", "x"), finished("a"))
    assert race.attempts() == [(race.devices[0], "")]
    assert race.reserved() == 0


async def test_lost_second_device_changes_nothing(session: GatewaySession) -> None:
    race = Race(session)
    race.core.disconnect(race.devices[1])
    race.core.wait(1)
    assert race.reserved() == 1
    assert len(race.core.placement.hedges) == 0


async def test_cancel_ends_both(session: GatewaySession) -> None:
    race = Race(session)
    race.core.placement.cancel(session, "a")
    assert set(race.cancelled()) == set(race.devices)
    assert race.reserved() == 0


async def test_frozen_device_is_found_out_though_hedges_answer_for_it(
    session: GatewaySession,
) -> None:
    race = Race(session)
    race.hear(1, delta("a", "x"), finished("a"))
    race.core.wait(11)
    assert race.core.unwell(race.devices[0]).startswith("suspect: no token for")
    assert race.core.unwell(race.devices[1]) == ""


async def test_no_hedge_unless_asked_for_nor_for_a_named_device(session: GatewaySession) -> None:
    assert len(Race(session, device="d0").devices) == 1
    core = HubCore(2)
    core.submit(session, "a")
    core.wait(5)
    assert len(core.lines.sent) == 1


async def test_hedges_are_a_small_share(session: GatewaySession) -> None:
    core = HubCore(10)
    for number in range(20):
        hints = inference_pb2.RoutingHints(hedge_after=1.0)
        core.submit(session, f"r{number}", hints=hints)
    core.wait(1)
    assert len(core.placement.hedges) == 1
    assert len(core.lines.sent) == 21
