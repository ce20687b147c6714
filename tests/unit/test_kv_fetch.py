"""What a device tells of its cached prefix, as records, answers and `shoal explain` show it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from agent.kv.policy import FetchInputs, fetch_or_recompute
from orchestrator.gateway import joint_records
from orchestrator.hub import convert
from shoal.cli.explain import cache_lines
from shoal.kv_fetch import parse_decision, restore_times
from shoal.openai.outcome import Outcome
from shoal.v1 import inference_pb2 as pb

INPUTS = FetchInputs(
    num_blocks=16,
    block_bytes=2_950_000,
    bandwidth_bytes_per_s=1e9,
    round_trip_ms=1.0,
    prefill_tokens_per_s=700,
)
FETCHED = fetch_or_recompute(INPUTS).to_json()
TRIED = fetch_or_recompute(replace(INPUTS, bandwidth_bytes_per_s=None)).to_json()


def changed(**values: Any) -> str:
    return json.dumps(json.loads(FETCHED) | values)


def finished(decision: str = FETCHED) -> pb.Finished:
    timings = pb.Timings(kv_decision=decision, kv_restore_ms={"redis": 41.5, "host": 2.25})
    return pb.Finished(timings=timings)


def test_an_engines_decision_is_told_with_its_numbers() -> None:
    assert parse_decision(FETCHED) == {
        "fetch": True,
        "reason": "fetching is faster",
        "num_blocks": 16,
        "fetch_ms": 48.2,
        "recompute_ms": 2925.71,
        "bandwidth_mb_per_s": 1000.0,
        "prefill_tokens_per_s": 700.0,
    }
    tried = parse_decision(TRIED)
    assert tried is not None
    assert (tried["fetch"], tried["fetch_ms"], tried["bandwidth_mb_per_s"]) == (True, None, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        "[" * 900,
        FETCHED + " " * 1000,
        json.dumps({"fetch": True}),
        changed(fetch="yes"),
        changed(fetch=1),
        changed(reason="my prompt was: \x1b[2J secret"),
        changed(reason=["fetching is faster"]),
        changed(num_blocks="16"),
        changed(num_blocks=-1),
        changed(num_blocks=True),
        changed(recompute_ms=None),
        changed(recompute_ms=math.inf),
        changed(fetch_ms=math.nan),
        changed(fetch_ms=1e300),
        changed(prefill_tokens_per_s=10**400),
    ],
)
def test_what_is_no_decision_is_dropped(text: str) -> None:
    assert parse_decision(text) is None


def test_what_else_a_decision_holds_is_dropped() -> None:
    assert parse_decision(changed(prompt="secret")) == parse_decision(FETCHED)


def test_restore_times_are_those_of_tiers_and_times() -> None:
    told = {"host": 1.23456, "disk": math.nan, "redis": -1.0, "\x1b[2J": 5.0}
    assert restore_times(told) == {"host": 1.235}


@pytest.mark.parametrize("told", [finished(), finished(changed(reason="other"))])
def test_hub_gateway_and_answer_tell_the_same(told: pb.Finished) -> None:
    outcome = Outcome("r1", "edge")
    outcome.take(pb.SequenceUpdate(finished=told))
    of_gateway = joint_records.actual(outcome)
    assert of_gateway is not None
    shown = outcome.extension()
    expected = parse_decision(told.timings.kv_decision)
    for actual in (convert.actual(told), of_gateway):
        assert actual.kv_fetch == shown["kv_fetch"] == expected
        assert actual.kv_restore_ms == shown["kv_restore_ms"] == {"host": 2.25, "redis": 41.5}


def test_explanation_tells_decision_and_times() -> None:
    actual = {"kv_fetch": parse_decision(FETCHED), "kv_restore_ms": {"host": 2.25, "redis": 41.5}}
    assert cache_lines({"actual": actual}) == [
        "prefix    fetched, fetching is faster: 16 blocks, predicted 48 ms to fetch,"
        " 2926 ms to compute",
        "restored  host 2.2 ms, redis 41.5 ms",
    ]
    unmeasured = cache_lines({"actual": {"kv_fetch": parse_decision(TRIED)}})
    assert "predicted an unmeasured time to fetch" in unmeasured[0]
    assert cache_lines({"actual": None}) == []
    assert cache_lines({"actual": {"kv_fetch": None, "kv_restore_ms": {}}}) == []
