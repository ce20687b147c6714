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
    gap = Router().backlog(REQUEST, FleetView(views, 1), 0).gap_ms
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
