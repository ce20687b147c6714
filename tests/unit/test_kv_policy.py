from __future__ import annotations

import json
from dataclasses import replace

from agent.kv.link import BandwidthBudget, Breaker, BreakerState, Speed
from agent.kv.policy import (
    STALL_LIMIT_MS,
    FetchInputs,
    fetch_deadline_ms,
    fetch_or_recompute,
    recompute_time_ms,
)

LOOPBACK = FetchInputs(
    num_blocks=16,
    block_bytes=2_950_000,
    bandwidth_bytes_per_s=1e9,
    round_trip_ms=1.0,
    prefill_tokens_per_s=700,
)


def test_a_fast_link_fetches_and_a_slow_uplink_recomputes() -> None:
    assert fetch_or_recompute(LOOPBACK).fetch
    slow = fetch_or_recompute(replace(LOOPBACK, bandwidth_bytes_per_s=20e6 / 8))
    assert not slow.fetch
    assert slow.fetch_ms is not None
    assert slow.fetch_ms > 3 * slow.recompute_ms


def test_an_unmeasured_link_is_tried() -> None:
    decision = fetch_or_recompute(replace(LOOPBACK, bandwidth_bytes_per_s=None))
    assert decision.fetch
    assert decision.fetch_ms is None


def test_nothing_found_is_nothing_fetched() -> None:
    assert not fetch_or_recompute(replace(LOOPBACK, num_blocks=0)).fetch


def test_the_decision_record_carries_the_numbers() -> None:
    record = json.loads(fetch_or_recompute(LOOPBACK).to_json())
    assert record["bandwidth_mb_per_s"] == 1000.0
    assert record["fetch_ms"] == 48.2
    assert record["recompute_ms"] == 2925.71


def test_a_fetch_that_stalls_anywhere_costs_at_most_the_stall_limit() -> None:
    for arrived in range(17):
        spent_ms = fetch_deadline_ms(0.0, arrived, 700)
        rest_ms = recompute_time_ms(16 - arrived, 700)
        cold_ms = recompute_time_ms(16, 700)
        assert spent_ms + rest_ms <= cold_ms + STALL_LIMIT_MS + 0.001


def test_a_hang_opens_at_once_and_other_failures_on_the_second() -> None:
    breaker = Breaker()
    breaker.failure(0.0, hung=True)
    assert breaker.state is BreakerState.OPEN
    breaker = Breaker()
    breaker.failure(0.0)
    assert breaker.state is BreakerState.CLOSED
    breaker.success()
    breaker.failure(0.0)
    assert breaker.state is BreakerState.CLOSED
    breaker.failure(0.0)
    assert breaker.state is BreakerState.OPEN


def test_one_probe_at_a_time_with_longer_and_longer_waits() -> None:
    breaker = Breaker(first_wait_s=1.0, max_wait_s=4.0)
    breaker.failure(0.0, hung=True)
    now, waits = 0.0, []
    for _ in range(4):
        start = now
        while not breaker.take_probe(now):
            now += 0.5
        waits.append(now - start)
        assert not breaker.take_probe(now + 100)
        breaker.failure(now)
    assert waits == [1.0, 2.0, 4.0, 4.0]


def test_an_answer_that_comes_too_late_does_not_close_the_breaker() -> None:
    breaker = Breaker()
    breaker.failure(0.0, hung=True)
    breaker.success()
    assert breaker.state is BreakerState.OPEN
    assert breaker.take_probe(5.0)
    breaker.success()
    assert breaker.state is BreakerState.CLOSED


def test_bandwidth_budget_spaces_transfers_out() -> None:
    budget = BandwidthBudget(100, now_s=0.0)
    assert budget.wait_s(100, 0.0) == 0.0
    assert budget.wait_s(50, 0.0) == 0.5
    assert budget.wait_s(50, 1.0) == 0.0
    assert BandwidthBudget(0, 0.0).wait_s(10**12, 0.0) == 0.0


def test_speed_is_a_moving_mean_of_real_transfers() -> None:
    speed = Speed()
    speed.sample(0, 1.0)
    speed.sample(10, 0.0)
    assert speed.bytes_per_s is None
    speed.sample(1000, 1.0)
    speed.sample(2000, 1.0)
    assert speed.bytes_per_s == 1300.0
