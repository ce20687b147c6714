"""Requests that wait in the hub: turns, refusals, cancellation, loading models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.fleet.view import DeviceId, DeviceState
from orchestrator.fleet.view_store import ModelLoad
from orchestrator.hub.session import GatewaySession
from shoal.v1 import inference_pb2 as pb
from tests.harness.hub_core import HubCore, updates_of
from tests.harness.hub_rig import MODEL, delta, failed, finished

D0, D1 = DeviceId("d0"), DeviceId("d1")


@pytest.fixture
def session() -> GatewaySession:
    return GatewaySession("g", 10_000)


def core_of(num_devices: int = 1, *, slots: int = 1) -> HubCore:
    """Devices that take no more than they have slots for."""
    return HubCore(num_devices, slots=slots, places=0)


def sent(core: HubCore) -> list[str]:
    return [command.submit.request_id for _, command in core.lines.sent if command.submit.model]


def finish(core: HubCore, name: str, device_id: DeviceId = D0) -> None:
    core.placement.on_frame(
        device_id, 1, pb.InferenceFrame(updates=[delta(name, "x"), finished(name)])
    )


async def test_request_waits_for_a_full_device_and_goes_when_it_has_room(
    session: GatewaySession,
) -> None:
    core = core_of()
    core.submit(session, "a")
    core.submit(session, "b")
    assert sent(core) == ["a"]
    core.clock.now_ms += 40
    finish(core, "a")
    assert sent(core) == ["a", "b"]
    placed = [u.placed for u in await updates_of(session) if u.HasField("placed")]
    assert [p.queue_ms for p in placed] == [0, 40]
    assert "waited 40 ms" in placed[1].reason
    finish(core, "b")
    assert [record.queue_ms for record in core.records.kept] == [0, 40]


async def test_place_that_came_free_is_not_hidden_by_an_older_report(
    session: GatewaySession,
) -> None:
    core = core_of()
    core.submit(session, "a")
    core.submit(session, "b")
    core.views.set_loads(D0, (ModelLoad(MODEL, running=1, waiting=0, waiting_prefill_tokens=0),))
    finish(core, "a")
    assert sent(core) == ["a", "b"]


async def test_burst_spreads_since_each_request_is_reserved_before_the_next_is_placed(
    session: GatewaySession,
) -> None:
    core = core_of(2, slots=4)
    for number in range(8):
        core.submit(session, f"r{number}")
    devices = [device_id for device_id, _ in core.lines.sent]
    assert (devices.count(D0), devices.count(D1)) == (4, 4)


async def test_more_urgent_one_goes_first_and_nobody_overtakes_by_coming_late(
    session: GatewaySession,
) -> None:
    core = core_of()
    for name, priority in (("a", 0), ("b", 0), ("urgent", 5)):
        core.submit(session, name, hints=pb.RoutingHints(priority=priority))
    finish(core, "a")
    core.submit(session, "late")
    finish(core, "urgent")
    assert sent(core) == ["a", "urgent", "b"]


async def test_cancelled_request_leaves_the_queue_and_no_device_hears_of_it(
    session: GatewaySession,
) -> None:
    core = core_of()
    for name in "abc":
        core.submit(session, name)
    core.placement.cancel(session, "b")
    assert len(core.placement.waiting) == 1
    finish(core, "a")
    assert sent(core) == ["a", "c"]
    assert not any(c.HasField("cancel") for _, c in core.lines.sent)
    assert core.records.kept[0].outcome == "cancelled"


async def test_gateway_that_goes_away_leaves_nothing_behind(session: GatewaySession) -> None:
    core = core_of()
    for name in "abcd":
        core.submit(session, name)
    core.placement.cancel_session(session)
    assert len(core.placement.waiting) == core.placement.num_active == 0
    assert sent(core) == ["a"]


async def test_sender_that_has_somewhere_else_to_go_is_refused_at_once(
    session: GatewaySession,
) -> None:
    core = core_of()
    core.submit(session, "a")
    core.submit(session, "b", hints=pb.RoutingHints(no_waiting=True))
    refused = (await updates_of(session))[-1]
    assert refused.failed.reason == pb.FAILURE_REASON_OVERLOADED
    assert refused.failed.retry_after_ms > 0


async def test_objective_that_waiting_would_miss_is_refused_at_once_with_the_prediction(
    session: GatewaySession,
) -> None:
    core = core_of()
    for number in range(5):
        core.submit(session, f"r{number}")
    hints = pb.RoutingHints(ttft_ms=200, on_slo_miss=pb.SLO_MISS_REFUSE, priority=-1)
    core.submit(session, "late", hints=hints)
    refused = (await updates_of(session))[-1].failed
    assert refused.reason == pb.FAILURE_REASON_SLO_UNREACHABLE
    assert refused.predicted_ttft_ms > 200
    assert f"{refused.predicted_ttft_ms:.0f} ms" in refused.message
    core.submit(
        session, "patient", hints=pb.RoutingHints(ttft_ms=200, on_slo_miss=pb.SLO_MISS_BEST_EFFORT)
    )
    assert len(core.placement.waiting) == 5


async def test_who_cannot_be_served_in_time_any_more_is_refused_while_it_waits(
    session: GatewaySession,
) -> None:
    core = core_of()
    core.submit(session, "a")
    core.submit(session, "b", hints=pb.RoutingHints(ttft_ms=5_000))
    core.placement.on_frame(D0, 1, pb.InferenceFrame(updates=[delta("a", "x")]))
    await session.take()
    for _ in range(20):
        core.clock.now_ms += 250
        core.placement.on_frame(D0, 1, pb.InferenceFrame(updates=[delta("a", "x")]))
        core.placement.tick()
    ends = [u.failed for u in await updates_of(session) if u.HasField("failed")]
    assert [end.reason for end in ends] == [pb.FAILURE_REASON_OVERLOADED]
    assert core.placement.num_active == 1


async def test_request_waits_while_its_only_device_loads_the_model(
    session: GatewaySession,
) -> None:
    core = core_of()
    view = core.views.get(D0)
    assert view is not None
    ready = view.models[MODEL]
    core.views.set_model(D0, replace(ready, ready=False, loading=True))
    core.submit(session, "a")
    assert sent(core) == []
    core.views.set_model(D0, ready)
    core.placement.tick()
    assert sent(core) == ["a"]


async def test_model_that_failed_to_load_is_not_waited_for(session: GatewaySession) -> None:
    core = core_of()
    view = core.views.get(D0)
    assert view is not None
    core.views.set_model(D0, replace(view.models[MODEL], ready=False))
    core.submit(session, "a")
    assert (await updates_of(session))[-1].failed.reason == pb.FAILURE_REASON_NO_DEVICE


async def test_who_waits_goes_on_waiting_while_the_device_may_come_back(
    session: GatewaySession,
) -> None:
    core = core_of()
    core.submit(session, "a")
    core.submit(session, "b")
    core.disconnect(D0)
    core.placement.tick()
    assert len(core.placement.waiting) == 1
    core.connect(D0, 2)
    core.placement.tick()
    assert sent(core)[-1] == "b"


async def test_who_waits_is_told_when_the_device_has_gone(session: GatewaySession) -> None:
    core = core_of()
    core.submit(session, "a")
    core.submit(session, "b")
    core.views.set_state(D0, DeviceState.DOWN)
    core.placement.tick()
    ends = [u.failed for u in await updates_of(session) if u.HasField("failed")]
    assert [end.reason for end in ends] == [pb.FAILURE_REASON_NO_DEVICE]


async def test_pinned_requests_do_not_hold_up_others(session: GatewaySession) -> None:
    core = core_of(2)
    core.submit(session, "a", hints=pb.RoutingHints(device="d0"))
    core.submit(session, "pinned", hints=pb.RoutingHints(device="d0"))
    core.submit(session, "b")
    core.submit(session, "c")
    assert sent(core) == ["a", "b"]
    finish(core, "b", D1)
    assert sent(core) == ["a", "b", "c"]


async def test_request_that_a_device_refused_waits_for_the_others(
    session: GatewaySession,
) -> None:
    core = core_of(2)
    for name in "abc":
        core.submit(session, name)
        core.clock.now_ms += 1
    first, second = (device_id for device_id, _ in core.lines.sent)
    crash = failed("a", pb.FAILURE_REASON_ENGINE_CRASHED)
    core.placement.on_frame(first, 1, pb.InferenceFrame(updates=[crash]))
    # Its place there goes to the next who waits; its own turn comes on the other device.
    assert sent(core) == ["a", "b", "c"]
    finish(core, "b", second)
    assert sent(core) == ["a", "b", "c", "a"]


async def test_one_tenants_flood_puts_out_only_its_own(session: GatewaySession) -> None:
    core = core_of()
    core.submit(session, "running", tenant="flood")
    for number in range(600):
        core.submit(session, f"f{number}", tenant="flood", hints=pb.RoutingHints(priority=1))
    for number in range(5):
        core.submit(session, f"o{number}", tenant="other")
    ended = [u.request_id for u in await updates_of(session) if u.HasField("failed")]
    assert ended
    assert all(name.startswith("f") for name in ended)
    finish(core, "running")
    finish(core, sent(core)[-1])
    assert "o0" in sent(core)[1:3]
