"""What a request has to expect that waits for one of the full devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.fleet.view import DeviceId, DeviceState, FleetView
from orchestrator.request import RouteRequest
from orchestrator.routing.backlog import MAX_ASKED
from orchestrator.routing.router import Router
from tests.unit.test_routing_router import MODEL, device, fleet, served

REQUEST = RouteRequest("r", "t", MODEL, 400)


def full(name, **changes):
    found = replace(device(name), **changes)
    places = served().slots + found.max_waiting
    return replace(found, in_flight={MODEL: places})


def gap_ms(*devices):
    return Router().backlog(REQUEST, fleet(*devices), 0).gap_ms


def test_twice_the_devices_free_places_twice_as_fast():
    one = gap_ms(full("a"))
    assert gap_ms(full("a"), full("b")) == pytest.approx(one / 2)


def test_more_devices_than_are_asked_count_all_the_same():
    many = [full(f"d{n}") for n in range(3 * MAX_ASKED)]
    assert gap_ms(*many) == pytest.approx(gap_ms(full("a")) / len(many))


def test_devices_of_a_large_fleet_that_were_not_drawn_count_too():
    views = {DeviceId(f"d{n}"): replace(full("a"), device_id=DeviceId(f"d{n}")) for n in range(900)}
    gap = Router().backlog(REQUEST, FleetView(views), 0).gap_ms
    assert gap == pytest.approx(gap_ms(full("a")) / 900, rel=0.01)


def test_devices_that_serve_nothing_now_count_for_nothing():
    down = full("b", state=DeviceState.DOWN)
    assert gap_ms(full("a"), down) == gap_ms(full("a"))
    assert gap_ms(down) is None
    assert Router().backlog(REQUEST, fleet(down), 0).ttft_ms == 0


def test_first_token_is_predicted_for_the_place_that_comes_free():
    predicted = Router().backlog(REQUEST, fleet(full("a")), 0).ttft_ms
    free = Router().route(REQUEST, fleet(device("a")), now_ms=0).chosen.prediction.ttft_ms
    assert predicted > free > 0


def ttft_ms(*since, now_ms, occupied=None):
    view = replace(
        device("a"),
        in_flight={MODEL: len(since) if occupied is None else occupied},
        in_flight_since={MODEL: since},
    )
    router = Router()
    return router.route(REQUEST, fleet(view), now_ms=now_ms).chosen.prediction.ttft_ms


def test_after_a_burst_no_slot_comes_free_before_the_oldest_had_time_for_its_output():
    just_begun = ttft_ms(1e6, 1e6, 1e6, 1e6, now_ms=1e6 + 10)
    half_done = ttft_ms(1e6, 1e6, 1e6, 1e6, now_ms=1e6 + 1_000)
    spread = ttft_ms(1e6 - 5_000, 1e6, 1e6, 1e6, now_ms=1e6 + 10)
    assert just_begun - half_done == pytest.approx(990)
    # The oldest is about to end: the mean pace counts, as for requests of unknown age.
    assert spread == ttft_ms(now_ms=1e6 + 10, occupied=4) < half_done


def test_second_in_line_waits_for_the_second_oldest():
    first = ttft_ms(1e6 - 1_000, 1e6, 1e6, 1e6, now_ms=1e6)
    second = ttft_ms(1e6 - 1_000, 1e6, 1e6, 1e6, 1e6, now_ms=1e6)
    assert second - first == pytest.approx(1_000)
