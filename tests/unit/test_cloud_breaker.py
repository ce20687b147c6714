"""The circuit breaker and the order of endpoints, with a clock of the test's own."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.dispatch.breaker import Breaker, BreakerLimits
from orchestrator.dispatch.choosing import CloudRoute, EndpointChooser
from orchestrator.dispatch.endpoint import CloudEndpoint, CloudModel
from orchestrator.dispatch.faults import EndpointFault, FaultKind

LIMITS = BreakerLimits(failures_to_open=3, first_rest_s=2.0, max_rest_s=10.0)


def opened(now_s: float = 0.0) -> Breaker:
    breaker = Breaker(LIMITS)
    for _ in range(3):
        assert breaker.acquire(now_s)
        breaker.failed(now_s)
    return breaker


def test_opens_after_failures_in_a_row_only() -> None:
    breaker = Breaker(LIMITS)
    for _ in range(5):
        breaker.failed(0)
        breaker.failed(0)
        breaker.succeeded()
    assert breaker.acquire(0)
    assert not opened().acquire(1.9)


def test_one_request_tries_after_the_rest_and_its_success_closes() -> None:
    breaker = opened()
    assert breaker.wait_s(0.5) == 1.5
    assert breaker.acquire(2.0)
    assert not breaker.acquire(2.0)
    breaker.succeeded()
    assert breaker.acquire(2.0)
    assert breaker.acquire(2.0)


def test_rest_doubles_to_a_bound() -> None:
    breaker, now_s, rests = opened(), 0.0, []
    for _ in range(5):
        rests.append(breaker.wait_s(now_s))
        now_s += rests[-1]
        assert breaker.acquire(now_s)
        breaker.failed(now_s)
    assert rests == [2, 4, 8, 10, 10]


def test_try_that_says_nothing_lets_the_next_one_try() -> None:
    breaker = opened()
    assert breaker.acquire(2.0)
    breaker.released()
    assert breaker.acquire(2.0)


def test_retry_after_is_a_rest_without_blame_and_bounded() -> None:
    breaker = Breaker(LIMITS)
    assert breaker.acquire(0)
    breaker.rate_limited(0, 7)
    assert not breaker.acquire(6.9)
    assert breaker.acquire(7)
    assert breaker.acquire(7)
    breaker.rate_limited(7, 10**9)
    assert breaker.wait_s(7) == LIMITS.max_retry_after_s


# Sixty-fourths of a second: their sums are exact.
PAUSES = st.integers(0, 5 * 64).map(lambda count: count / 64)
EVENTS = st.lists(st.tuples(st.sampled_from(["ok", "fail", "limit", "leave"]), PAUSES), max_size=60)


@given(EVENTS)
def test_never_rests_for_ever_and_tries_alone_while_open(events: list[tuple[str, float]]) -> None:
    breaker, now_s = Breaker(LIMITS), 0.0
    for event, pause_s in events:
        now_s += pause_s
        if not breaker.acquire(now_s):
            now_s += breaker.wait_s(now_s)
            assert breaker.acquire(now_s)
        if event == "ok":
            breaker.succeeded()
        elif event == "fail":
            breaker.failed(now_s)
        elif event == "limit":
            breaker.rate_limited(now_s, 3)
        else:
            breaker.released()
        assert breaker.wait_s(now_s) <= LIMITS.max_rest_s


def endpoint(name: str, rank: int, weight: float, **model: float) -> CloudEndpoint:
    models = (CloudModel("big", "big", 10**10, **model),)  # type: ignore[arg-type]
    return CloudEndpoint(name, f"http://{name}/v1", models, priority=rank, weight=weight)


def test_priorities_come_first_and_weights_share_the_first_place() -> None:
    endpoints = [endpoint("c", 1, 100), endpoint("a", 0, 3), endpoint("b", 0, 1)]
    chooser = EndpointChooser(endpoints, random.Random(7))
    orders = [[route.endpoint.name for route in chooser.order("big")] for _ in range(4000)]
    assert all(order[-1] == "c" for order in orders)
    share = Counter(order[0] for order in orders)["a"] / 4000
    assert 0.72 < share < 0.78
    assert chooser.routes["big"][0].endpoint.name in ("a", "b")


def test_models_own_priority_and_weight_win() -> None:
    chooser = EndpointChooser(
        [endpoint("a", 0, 1, priority=5), endpoint("b", 1, 1)], random.Random(7)
    )
    assert [route.endpoint.name for route in chooser.order("big")] == ["b", "a"]


def test_unknown_model_rests_alone_and_other_faults_rest_the_endpoint() -> None:
    models = (CloudModel("big", "mistyped", 10**10), CloudModel("good", "good", 10**10))
    chooser = EndpointChooser([CloudEndpoint("a", "http://a/v1", models)], random.Random(7))
    (big,), (good,) = chooser.order("big"), chooser.order("good")

    def fails(route: CloudRoute, kind: FaultKind, times: int) -> None:
        for _ in range(times):
            assert chooser.acquire([route], 0) == route
            chooser.breaker(route).faulted(EndpointFault(kind, "a"), 0)

    fails(big, FaultKind.NO_MODEL, 3)
    assert chooser.acquire([big], 1) is None
    assert chooser.wait_s([big], 1) == 1
    # Its one try after the rest is not held up by, and does not hold up, the other model.
    assert chooser.acquire([good], 1) == good
    chooser.breaker(good).succeeded()
    assert chooser.acquire([big], 2) == big
    chooser.breaker(big).succeeded()
    fails(good, FaultKind.SERVER_ERROR, 3)
    assert chooser.acquire([big], 1) is None
    assert chooser.acquire([big], 2) == big
    assert chooser.acquire([good], 2) is None
    chooser.breaker(big).released()
    assert chooser.acquire([good], 2) == good


def test_resting_endpoint_is_passed_over() -> None:
    chooser = EndpointChooser([endpoint("a", 0, 1), endpoint("b", 1, 1)], random.Random(7))
    first, second = chooser.order("big")
    chooser.breaker(first).endpoint.rate_limited(0, 30)
    assert chooser.acquire([first, second], 1) == second
    assert chooser.acquire([first], 1) is None
    assert chooser.wait_s([first], 1) == 29
