import random
from dataclasses import replace

import pytest

from orchestrator.request import Objective, Slo, SloMiss
from orchestrator.routing.decision import LazyCandidates, RejectionKind
from orchestrator.routing.drawing import FULL_SCAN_DEVICES
from orchestrator.routing.router import Router
from orchestrator.routing.scoring import NEAR, SLO_CONFIDENT
from shoal.errors import Reason
from tests.unit.test_routing_router import (
    MODEL,
    chosen,
    device,
    fleet,
    kinds,
    request,
    route,
    served,
)


def speed(tokens_per_s, **changes):
    return served(decode_batch_tokens_per_s=(tokens_per_s,), **changes)


ARM = device("arm", "arm_cpu", tdp_w=10.0, model=speed(20.0))
NPU = device("npu", "npu", tdp_w=24.0, model=speed(200.0))


@pytest.mark.parametrize(
    ("objective", "expected"),
    [(Objective.LATENCY, "arm"), (Objective.EDP, "npu"), (Objective.ENERGY, "npu")],
)
def test_stated_energy_objective_goes_before_the_tree(objective, expected):
    decision = route(fleet(ARM, NPU), objective=objective)
    assert chosen(decision) == expected
    if expected == "npu":
        assert kinds(decision) == {"arm": RejectionKind.SCORE}
        assert "least energy" in decision.reason


def test_tree_decides_between_classes_of_equal_energy():
    pair = [device(name, name, tdp_w=10.0) for name in ("gpu", "arm_cpu")]
    decision = route(fleet(*pair), objective=Objective.EDP)
    assert chosen(decision) == "arm_cpu"
    assert kinds(decision) == {"gpu": RejectionKind.CLASS_ORDER}


def test_energy_does_not_queue_while_a_slot_is_free():
    full = replace(NPU, in_flight={MODEL: 4})
    decision = route(fleet(ARM, full), objective=Objective.ENERGY)
    assert chosen(decision) == "arm"
    assert kinds(decision) == {"npu": RejectionKind.LOAD}


@pytest.mark.parametrize("objective", [Objective.EDP, Objective.ENERGY])
def test_slo_goes_before_energy(objective):
    frugal = device("frugal", tdp_w=1.0, model=speed(10.0))
    hungry = device("hungry", tdp_w=100.0)
    decision = route(fleet(frugal, hungry), objective=objective, slo=Slo(tpot_ms=50.0))
    assert chosen(decision) == "hungry"
    assert kinds(decision) == {"frugal": RejectionKind.SLO_TPOT}


@pytest.mark.parametrize("objective", [Objective.EDP, Objective.ENERGY])
def test_large_fleet_finds_the_frugal_class_past_the_preferred_one(objective):
    many = [replace(ARM, device_id=f"id-{n}", name=f"arm{n}") for n in range(FULL_SCAN_DEVICES * 2)]
    assert chosen(route(fleet(*many, NPU), objective=objective)) == "npu"


def test_device_that_barely_meets_the_slo_yields_to_one_that_surely_does():
    slow = device("slow", "arm_cpu", model=speed(1000.0 / (50.0 * (SLO_CONFIDENT + 0.1))))
    decision = route(fleet(slow, device("fast")), slo=Slo(tpot_ms=50.0))
    assert chosen(decision) == "fast"
    lost = next(c.rejected for c in decision.candidates if c.device_name == "slow")
    assert "is close to the stated 50 ms" in lost
    assert "come close to missing" in decision.reason


def test_device_that_barely_meets_the_slo_is_better_than_none():
    slow = device("slow", model=speed(1000.0 / 45.0))
    missing = device("missing", "arm_cpu", model=speed(10.0))
    decision = route(fleet(slow, missing), slo=Slo(tpot_ms=50.0))
    assert chosen(decision) == "slow"
    assert "best effort" not in decision.reason


def test_router_that_refuses_says_what_the_best_device_would_take():
    router = Router(on_slo_miss=SloMiss.REFUSE)
    decision = route(fleet(ARM, NPU), router, slo=Slo(tpot_ms=0.1))
    assert decision.ranked == ()
    assert decision.failure.reason is Reason.SLO_UNREACHABLE
    assert "TPOT 50.0 ms" in decision.failure.message
    assert len(decision.candidates) == 2
    assert all(c.rejected for c in decision.candidates)


def test_request_says_itself_whether_it_is_refused_and_is_told_the_figures():
    slo = Slo(tpot_ms=0.1)
    refused = route(fleet(ARM, NPU), slo=slo, on_slo_miss=SloMiss.REFUSE)
    assert refused.failure.foreseen.tpot_ms == pytest.approx(50.0)
    late = route(fleet(ARM, NPU), slo=Slo(ttft_ms=0.1), on_slo_miss=SloMiss.REFUSE)
    assert late.failure.retry_after_ms >= 250
    strict = Router(on_slo_miss=SloMiss.REFUSE)
    assert route(fleet(ARM, NPU), strict, slo=slo, on_slo_miss=SloMiss.BEST_EFFORT).ranked


def test_busy_device_that_would_only_just_meet_the_first_token_is_not_promised():
    busy = device("a", in_flight={MODEL: 4})
    ttft_ms = chosen_of(busy).ttft_ms
    wish = {"on_slo_miss": SloMiss.REFUSE}
    assert route(fleet(busy), slo=Slo(ttft_ms=ttft_ms / SLO_CONFIDENT + 1), **wish).ranked
    refused = route(fleet(busy), slo=Slo(ttft_ms=ttft_ms / SLO_CONFIDENT - 1), **wish)
    assert "surely" in refused.failure.message
    free = device("a", in_flight={MODEL: 3})
    assert route(fleet(free), slo=Slo(ttft_ms=chosen_of(free).ttft_ms + 1), **wish).ranked


def test_promises_are_as_wide_as_first_tokens_were_late_of_late():
    router, wish = Router(), {"on_slo_miss": SloMiss.REFUSE}
    busy, idle = device("a", in_flight={MODEL: 1}), device("a")
    predicted = chosen_of(busy)
    slo = Slo(ttft_ms=2 * predicted.ttft_ms)
    assert route(fleet(busy), router, slo=slo, **wish).ranked
    for _ in range(20):
        router.observe_ttft(MODEL, 3 * predicted.ttft_ms, predicted)
    refused = route(fleet(busy), router, slo=slo, **wish)
    assert refused.failure.reason is Reason.SLO_UNREACHABLE
    assert "surely" in refused.failure.message
    # Who asks for no refusal is served, and an idle device is tried: it may do better now.
    assert route(fleet(busy), router, slo=slo).ranked
    assert route(fleet(idle), router, slo=slo, **wish).ranked
    assert router.backlog(request(), fleet(busy), 0.0).sure_share == pytest.approx(1 / 3)


def chosen_of(view):
    return route(fleet(view)).chosen.prediction


def test_router_that_refuses_serves_what_can_be_met():
    router = Router(on_slo_miss=SloMiss.REFUSE)
    assert chosen(route(fleet(ARM, NPU), router, slo=Slo(tpot_ms=20.0))) == "npu"


def share_of_a(noise, num_requests=400):
    """Share of requests that go to one of two devices whose speeds jitter independently."""
    rng = random.Random(5)
    router, held = Router(), {"a": 0, "b": 0}
    for number in range(num_requests):
        view = fleet(*(device(n, model=speed(100 * rng.uniform(1, noise))) for n in held))
        held[chosen(route(view, router, request_id=f"r{number}"))] += 1
    return held["a"] / num_requests


def test_noise_below_the_threshold_does_not_move_the_traffic():
    assert 0.4 < share_of_a(1 + (NEAR - 1) / 2) < 0.6


def test_scores_on_both_sides_of_any_boundary_count_as_equal():
    # No grid of scores: wherever the best lies, one 3 % worse is its equal.
    for tokens_per_s in range(50, 150):
        pair = (
            device("a", model=speed(tokens_per_s)),
            device("b", model=speed(tokens_per_s / 1.03)),
        )
        assert set(kinds(route(fleet(*pair))).values()) <= {RejectionKind.SPREAD}


def test_candidates_are_worded_only_when_somebody_looks():
    asked = []

    def explain():
        asked.append(1)
        return decision.candidates[:]

    decision = route(fleet(ARM, NPU))
    lazy = LazyCandidates(decision.candidates[0], explain)
    assert lazy[0].device_name == "arm"
    assert not asked
    assert lazy == decision.candidates
    assert len(lazy) == 2
    assert asked == [1]
