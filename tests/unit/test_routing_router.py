import random
from dataclasses import replace

import pytest

from orchestrator.fleet.view import (
    DeviceClass,
    DeviceId,
    DeviceState,
    DeviceView,
    FleetView,
    ServedModel,
    Unwell,
)
from orchestrator.request import Objective, RouteRequest, Slo
from orchestrator.routing.decision import RejectionKind
from orchestrator.routing.drawing import FULL_SCAN_DEVICES
from orchestrator.routing.explanation import SOON_MS
from orchestrator.routing.record import DecisionRecord
from orchestrator.routing.router import MAX_LISTED, Router
from shoal.errors import Reason

MODEL = "tiny"


def served(**changes) -> ServedModel:
    model = ServedModel(
        name=MODEL,
        fingerprint="f",
        num_parameters=135_000_000,
        context_tokens=2048,
        slots=4,
        prefill_tokens_per_s=1000.0,
        decode_tokens_per_s=100.0,
        decode_batch_tokens_per_s=(100.0, 150.0, 200.0),
    )
    return replace(model, **changes)


def device(name, device_class="x86_cpu", *, model=None, **changes) -> DeviceView:
    model = model or served()
    view = DeviceView(
        device_id=DeviceId(f"id-{name}"),
        name=name,
        device_class=DeviceClass(device_class),
        state=DeviceState.READY,
        models={model.name: model},
    )
    return replace(view, **changes)


def fleet(*devices) -> FleetView:
    return FleetView({d.device_id: d for d in devices})


def request(**changes) -> RouteRequest:
    return replace(RouteRequest("r1", "t", MODEL, prompt_bytes=400, max_tokens=32), **changes)


def route(view, router=None, exclude=(), **changes):
    exclude = frozenset(DeviceId(f"id-{name}") for name in exclude)
    return (router or Router()).route(request(**changes), view, exclude=exclude, now_ms=1000.0)


def chosen(decision) -> str:
    assert decision.failure is None
    return decision.chosen.device_name


def kinds(decision) -> dict[str, RejectionKind]:
    return {c.device_name: c.rejection.kind for c in decision.candidates if c.rejection}


ALL_CLASSES = [device(c, c) for c in ("x86_cpu", "gpu", "arm_cpu", "npu")]


def fleet_of_size(num_parameters, classes=("x86_cpu", "gpu", "arm_cpu", "npu")) -> FleetView:
    return fleet(*(device(c, c, model=served(num_parameters=num_parameters)) for c in classes))


@pytest.mark.parametrize(
    ("num_parameters", "tpot_ms", "expected"),
    [
        (1_000_000_000, None, "arm_cpu"),
        (1_000_000_001, None, "gpu"),
        (1_000_000_001, 50.0, "npu"),
        (6_999_999_999, 50.0001, "gpu"),
    ],
)
def test_tree_picks_the_class(num_parameters, tpot_ms, expected):
    decision = route(fleet_of_size(num_parameters), slo=Slo(tpot_ms=tpot_ms))
    assert chosen(decision) == expected
    assert decision.tier == "edge"


def test_7b_is_marked_for_the_cloud_and_still_ranks_the_edge():
    decision = route(fleet_of_size(7_000_000_000))
    assert decision.tier == "cloud"
    assert len(decision.ranked) == 4


def test_absent_class_falls_back_in_the_stated_order():
    names = ["arm_cpu", "npu", "gpu", "x86_cpu"]
    while names:
        decision = route(fleet_of_size(10**9, names))
        assert [str(i) for i in decision.ranked] == [f"id-{name}" for name in names]
        assert "arm_cpu preferred" in decision.reason
        names.pop(0)


def test_class_with_all_slots_taken_yields_to_the_next():
    arm = device("arm", "arm_cpu", in_flight={MODEL: 4})
    decision = route(fleet(arm, device("x86")))
    assert chosen(decision) == "x86"
    assert kinds(decision)["arm"] is RejectionKind.CLASS_BUSY
    assert "all its slots are taken, so x86_cpu" in decision.reason


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"models": {}}, "but none serves the model, so x86_cpu"),
        ({"in_flight": {MODEL: 20}}, "but all are full, so x86_cpu"),
        ({"state": DeviceState.DOWN}, "but none is available, so x86_cpu"),
    ],
)
def test_reason_says_why_the_preferred_class_was_passed_over(changes, why):
    decision = route(fleet(device("arm", "arm_cpu", **changes), device("x86")))
    assert chosen(decision) == "x86"
    assert why in decision.reason


def test_preferred_class_queues_when_every_class_is_busy():
    arm = device("arm", "arm_cpu", in_flight={MODEL: 4})
    decision = route(fleet(arm, device("x86", in_flight={MODEL: 4})))
    assert chosen(decision) == "arm"
    assert kinds(decision)["x86"] is RejectionKind.CLASS_ORDER


def test_later_class_wins_when_only_it_meets_the_slo():
    slow = served(decode_tokens_per_s=10.0, decode_batch_tokens_per_s=(10.0,))
    arm = device("arm", "arm_cpu", model=slow)
    decision = route(fleet(arm, device("x86")), slo=Slo(tpot_ms=40.0))
    assert chosen(decision) == "x86"
    assert kinds(decision)["arm"] is RejectionKind.SLO_TPOT
    lost = next(c.rejected for c in decision.candidates if c.device_name == "arm")
    assert lost == "predicted TPOT 100.0 ms misses the stated 40 ms"


def test_ttft_slo_counts_the_prompt_backlog():
    arm = device("arm", "arm_cpu", in_flight_prefill_tokens={MODEL: 5000})
    decision = route(fleet(arm, device("x86")), slo=Slo(ttft_ms=1000.0))
    assert chosen(decision) == "x86"
    assert kinds(decision)["arm"] is RejectionKind.SLO_TTFT


def test_slo_that_nobody_meets_is_served_by_best_effort_and_said():
    decision = route(fleet(*ALL_CLASSES), slo=Slo(tpot_ms=0.1))
    assert chosen(decision) == "arm_cpu"
    assert "best effort" in decision.reason


def test_slow_device_of_the_same_class_loses_by_its_prediction():
    slow = device("slow", model=served(decode_batch_tokens_per_s=(18.0,)))
    decision = route(fleet(slow, device("fast")))
    assert chosen(decision) == "fast"
    assert kinds(decision)["slow"] is RejectionKind.SCORE


def test_fast_device_with_a_queue_beats_a_slow_idle_one():
    slow = device("slow", model=served(decode_batch_tokens_per_s=(2.0,)))
    fast = device("fast", in_flight={MODEL: 5})
    assert chosen(route(fleet(slow, fast))) == "fast"


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"state": DeviceState.SUSPECT}, RejectionKind.STATE),
        ({"state": DeviceState.DOWN}, RejectionKind.STATE),
        ({"state": DeviceState.DRAINING}, RejectionKind.STATE),
        ({"state": DeviceState.ENROLLED}, RejectionKind.STATE),
        ({"state": DeviceState.LEFT}, RejectionKind.STATE),
        ({"state": DeviceState.REVOKED}, RejectionKind.STATE),
        ({"models": {}}, RejectionKind.MODEL_ABSENT),
        ({"models": {MODEL: served(ready=False)}}, RejectionKind.MODEL_NOT_READY),
        ({"in_flight": {MODEL: 20}}, RejectionKind.FULL),
        ({"models": {MODEL: served(running=4, waiting=16)}}, RejectionKind.FULL),
    ],
)
def test_device_that_cannot_serve_is_ruled_out_with_its_reason(change, kind):
    decision = route(fleet(replace(device("bad"), **change), device("good")))
    assert chosen(decision) == "good"
    assert len(decision.ranked) == 1
    assert kinds(decision) == {"bad": kind}
    assert all(c.rejected for c in decision.candidates if c.device_name == "bad")


def test_tried_device_is_excluded():
    view = fleet(device("a", "arm_cpu"), device("b"))
    decision = route(view, exclude=["a"])
    assert chosen(decision) == "b"
    assert kinds(decision) == {"a": RejectionKind.EXCLUDED}


@pytest.mark.parametrize("hint", ["gpu", "id-gpu"])
def test_device_hint_takes_a_name_or_an_id(hint):
    decision = route(fleet(*ALL_CLASSES), device=hint)
    assert decision.ranked == ("id-gpu",)
    assert set(kinds(decision).values()) == {RejectionKind.DEVICE_HINT}


def test_class_hint_leaves_only_that_class():
    decision = route(fleet(*ALL_CLASSES), device_class="npu")
    assert decision.ranked == ("id-npu",)
    assert "the request asks for npu" in decision.reason
    assert set(kinds(decision).values()) == {RejectionKind.CLASS_HINT}


def test_unknown_model_is_not_found():
    decision = route(fleet(*ALL_CLASSES), model="other")
    assert decision.ranked == ()
    assert decision.failure.reason is Reason.MODEL_NOT_FOUND
    assert decision.failure.param == "model"


def test_model_of_a_down_device_is_no_device_and_not_unknown():
    decision = route(fleet(device("a", state=DeviceState.DOWN)))
    assert decision.failure.reason is Reason.NO_DEVICE
    assert decision.failure.http_status == 503
    assert "DOWN" in decision.failure.message


def test_empty_fleet_has_no_model():
    assert route(fleet()).failure.reason is Reason.MODEL_NOT_FOUND


def test_full_fleet_is_overloaded_with_a_predicted_wait():
    full = {MODEL: 20}
    decision = route(fleet(device("a", in_flight=full), device("b", in_flight=full)))
    assert decision.failure.reason is Reason.OVERLOADED
    # 128 tokens expected at 200 tokens/s over 4 slots: a place each 640 ms.
    assert decision.failure.retry_after_ms == pytest.approx(640, abs=1)


def test_full_device_outside_the_hint_does_not_count_as_overload():
    full = device("a", "gpu", in_flight={MODEL: 20})
    decision = route(fleet(full), device_class="npu")
    assert decision.failure.reason is Reason.NO_DEVICE
    assert decision.failure.param == "shoal.class"


@pytest.mark.parametrize("model", [MODEL, "other"])
def test_unknown_device_is_not_found(model):
    decision = route(fleet(*ALL_CLASSES), device="nope", model=model)
    assert decision.failure.http_status == 404
    assert decision.failure.param == "shoal.device"


@pytest.mark.parametrize(
    ("change", "says", "soon"),
    [
        ({"models": {MODEL: served(ready=False, loading=True)}}, f"is loading {MODEL}", True),
        ({"models": {MODEL: served(ready=False, unwell=Unwell("slow"))}}, "is slow", True),
        ({"state": DeviceState.SUSPECT}, "is SUSPECT", True),
        ({"models": {MODEL: served(ready=False)}}, f"failed to load {MODEL}", False),
        ({"state": DeviceState.DOWN}, "is DOWN", False),
        ({"state": DeviceState.DRAINING}, "is DRAINING", False),
    ],
)
def test_refusal_names_the_state_and_when_to_come_back(change, says, soon):
    failure = route(fleet(replace(device("bad"), **change))).failure
    assert failure.reason is Reason.NO_DEVICE
    assert says in failure.message
    assert failure.retry_after_ms == (SOON_MS if soon else 0)
    assert ("try again in 2 s" in failure.message) is soon


def test_all_tried_is_no_device():
    decision = route(fleet(device("a")), exclude=["a"])
    assert decision.failure.reason is Reason.NO_DEVICE
    assert "was tried" in decision.failure.message


def burst(view_of, num_requests):
    held = {}
    router = Router()
    for number in range(num_requests):
        decision = router.route(
            request(request_id=f"r{number}"), view_of(held), exclude=frozenset(), now_ms=0.0
        )
        held[decision.ranked[0]] = held.get(decision.ranked[0], 0) + 1
    return held


def test_burst_over_equal_devices_spreads_evenly():
    def view_of(held):
        return fleet(
            *(
                device(name, in_flight={MODEL: held.get(f"id-{name}", 0)})
                for name in ("a", "b", "c", "d")
            )
        )

    assert sorted(burst(view_of, 16).values()) == [4, 4, 4, 4]


def test_first_requests_of_a_burst_do_not_all_start_with_one_device():
    view = fleet(*(device(name) for name in ("a", "b", "c", "d")))
    starts = {route(view, request_id=f"r{number}").ranked[0] for number in range(50)}
    assert len(starts) == 4


def test_same_inputs_give_the_same_decision():
    view = fleet(*(device(name) for name in "abcdefgh"))
    assert route(view) == route(view)


@pytest.mark.parametrize(
    ("objective", "expected"),
    [(Objective.LATENCY, "hungry"), (Objective.ENERGY, "frugal"), (Objective.EDP, "frugal")],
)
def test_objective_decides_within_a_class(objective, expected):
    hungry = device("hungry", tdp_w=100.0)
    slower = served(decode_batch_tokens_per_s=(80.0,), prefill_tokens_per_s=800.0)
    frugal = device("frugal", tdp_w=10.0, model=slower)
    assert chosen(route(fleet(hungry, frugal), objective=objective)) == expected


def test_unknown_energy_loses_to_known_under_an_energy_objective():
    decision = route(fleet(device("dark"), device("lit", tdp_w=500.0)), objective=Objective.ENERGY)
    assert chosen(decision) == "lit"
    lost = next(c.rejected for c in decision.candidates if c.device_name == "dark")
    assert lost == "its energy cannot be estimated"


def large_fleet(number=FULL_SCAN_DEVICES * 8, **changes):
    return fleet(*(device(f"d{n}", **changes) for n in range(number)))


def test_large_fleet_draws_a_few_and_says_how_many_were_not_considered():
    view = large_fleet()
    decision = route(view)
    assert decision.failure is None
    assert len(decision.candidates) + decision.num_unlisted == len(view.devices)
    assert len(decision.candidates) < FULL_SCAN_DEVICES


def test_large_fleet_finds_the_preferred_class_among_many():
    view = fleet(*large_fleet().devices.values(), device("arm", "arm_cpu"))
    assert chosen(route(view)) == "arm"


def test_large_fleet_falls_to_the_next_class_when_the_preferred_is_busy():
    busy = [device(f"arm{n}", "arm_cpu", in_flight={MODEL: 4}) for n in range(100)]
    view = fleet(*busy, device("gpu", "gpu"))
    assert chosen(route(view)) == "gpu"


def test_large_fleet_finds_its_only_device_with_room():
    view = large_fleet(in_flight={MODEL: 20})
    devices = dict(view.devices)
    devices[DeviceId("id-d7")] = device("d7")
    assert chosen(route(FleetView(devices))) == "d7"


def test_large_fleet_sees_a_device_that_just_joined():
    view = large_fleet(state=DeviceState.DOWN)
    assert route(view).failure.reason is Reason.NO_DEVICE
    joined = fleet(*view.devices.values(), device("new"))
    assert chosen(route(joined)) == "new"


def test_large_fleet_looks_past_those_that_failed_the_request():
    view = large_fleet()
    excluded = frozenset(sorted(view.devices)[:-1])
    decision = Router().route(request(), view, exclude=excluded, now_ms=1.0)
    assert decision.ranked == (max(view.devices),)
    listed = [candidate.device_id for candidate in decision.candidates]
    assert len(set(listed)) == len(listed)


def test_large_fleet_honours_a_device_hint():
    assert route(large_fleet(), device="d100").ranked == ("id-d100",)


def test_large_fleet_without_the_model_is_not_found():
    assert route(large_fleet(), model="other").failure.reason is Reason.MODEL_NOT_FOUND


def test_overloaded_large_fleet_is_refused_with_a_bounded_decision():
    decision = route(large_fleet(5000, in_flight={MODEL: 20}))
    assert decision.failure.reason is Reason.OVERLOADED
    assert 0 < len(decision.candidates) <= MAX_LISTED
    assert len(decision.candidates) + decision.num_unlisted == 5000


def random_device(rng, number):
    model = served(
        ready=rng.random() < 0.9,
        running=rng.randrange(5),
        waiting=rng.randrange(3),
        decode_batch_tokens_per_s=rng.choice([(), (5.0,), (100.0, 150.0, 200.0)]),
    )
    return device(
        f"d{number}",
        rng.choice(list(DeviceClass)),
        model=model if rng.random() < 0.8 else served(name="other"),
        state=rng.choice([DeviceState.READY] * 4 + list(DeviceState)),
        in_flight={MODEL: rng.randrange(24)},
        tdp_w=rng.choice([None, 10.0]),
    )


@pytest.mark.parametrize("seed", range(150))
def test_any_fleet_gives_a_consistent_decision(seed):
    rng = random.Random(seed)
    view = fleet(*(random_device(rng, n) for n in range(rng.choice([0, 1, 5, 20, 80]))))
    excluded = frozenset(i for i in view.devices if rng.random() < 0.2)
    asked = request(
        slo=Slo(rng.choice([None, 500.0]), rng.choice([None, 5.0, 50.0])),
        objective=rng.choice(list(Objective)),
        device_class=rng.choice(["", "", "gpu"]),
    )
    decision = Router().route(asked, view, exclude=excluded, now_ms=1.0)

    assert (decision.failure is None) == bool(decision.ranked)
    assert len(set(decision.ranked)) == len(decision.ranked)
    assert decision.reason
    for device_id in decision.ranked:
        placed = view.devices[device_id]
        model = placed.models[MODEL]
        held = max(placed.in_flight[MODEL], model.running + model.waiting)
        assert placed.state is DeviceState.READY
        assert model.ready
        assert held < model.slots + placed.max_waiting
        assert device_id not in excluded
        assert asked.device_class in ("", placed.device_class)
    for candidate in decision.candidates:
        first = decision.ranked[:1] == (candidate.device_id,)
        assert (candidate.rejected is None) == first
        assert (candidate.prediction is not None) == (candidate.device_id in decision.ranked)
    read_back = DecisionRecord.from_json(DecisionRecord(decision).to_json())
    assert read_back.decision.ranked == decision.ranked
