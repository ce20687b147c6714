from __future__ import annotations

import random

import pytest

from agent.companion.busy import BusyClock


def test_a_lone_request_has_all_of_the_servers_time() -> None:
    clock = BusyClock(0.0)
    clock.begin("a", 1.0)
    used = clock.end("a", 3.0)
    assert (used.own_s, used.busy_s, used.mean_batch) == (2.0, 2.0, 1)
    assert clock.busy_s(10.0) == 2.0


def test_two_at_once_share_the_time_that_both_are_there() -> None:
    clock = BusyClock(0.0)
    clock.begin("a", 0.0)
    clock.begin("b", 2.0)
    assert clock.end("a", 4.0).own_s == pytest.approx(3.0)
    used = clock.end("b", 5.0)
    assert used.own_s == pytest.approx(2.0)
    assert used.busy_s == pytest.approx(3.0)
    assert used.mean_batch == 2


def test_shares_add_up_to_the_busy_time_whatever_happens() -> None:
    rng = random.Random(5)
    clock, now_s, own_s = BusyClock(0.0), 0.0, 0.0
    running: list[str] = []
    for number in range(500):
        now_s += rng.random()
        if running and rng.random() < 0.5:
            own_s += clock.end(running.pop(rng.randrange(len(running))), now_s).own_s
        else:
            running.append(str(number))
            clock.begin(str(number), now_s)
    for name in running:
        own_s += clock.end(name, now_s).own_s
    assert own_s == pytest.approx(clock.busy_s(now_s))
