from __future__ import annotations

from typing import Any

import pytest

from orchestrator.gateway.fleet_metrics import MAX_DEVICES, FleetMetrics
from orchestrator.gateway.metrics import RequestMetrics
from shoal.errors import Reason, ShoalError
from shoal.openai.outcome import Outcome
from shoal.v1 import inference_pb2 as pb


def outcome(*, tier: str = "edge", **timings: Any) -> Outcome:
    made = Outcome("r", tier)
    made.placed = pb.Placed(device_class="arm_cpu", predicted_ttft_ms=120.0, predicted_tpot_ms=10.0)
    figures = {"ttft_ms": 100.0, "tpot_ms": 10.0, **timings}
    usage = pb.Usage(prompt_tokens=11, completion_tokens=5, cached_tokens=4)
    made.finished = pb.Finished(usage=usage, timings=pb.Timings(**figures))
    return made


def lines(text: bytes) -> dict[str, float]:
    pairs = (line.rsplit(" ", 1) for line in text.decode().splitlines() if line[0] != "#")
    return {name: float(value) for name, value in pairs}


def rendered(metrics: RequestMetrics) -> dict[str, float]:
    return lines(metrics.render())


def test_finished_request_counts_tokens_times_joules_and_prediction_error() -> None:
    metrics = RequestMetrics()
    metrics.ended(outcome(joules=1.5, joules_estimated=True), "m", None)
    found = rendered(metrics)
    assert found['shoal_requests_total{model="m",outcome="finished",tier="edge"}'] == 1
    assert found['shoal_tokens_total{kind="cached",model="m",tier="edge"}'] == 4
    assert found['shoal_ttft_seconds_sum{model="m",tier="edge"}'] == pytest.approx(0.1)
    labels = 'device_class="arm_cpu",estimated="true",model="m"'
    assert found[f"shoal_joules_total{{{labels}}}"] == 1.5
    error = 'shoal_prediction_error_ratio_sum{figure="ttft",model="m"}'
    assert found[error] == pytest.approx(0.2)


def test_unknown_joules_are_counted_as_unknown_and_not_as_zero() -> None:
    metrics = RequestMetrics()
    metrics.ended(outcome(), "m", None)
    found = rendered(metrics)
    assert not [name for name in found if name.startswith("shoal_joules_total")]
    assert found['shoal_requests_without_joules_total{model="m",tier="edge"}'] == 1


def test_names_that_nobody_serves_make_no_labels() -> None:
    metrics = RequestMetrics()
    error = ShoalError(Reason.MODEL_NOT_FOUND, "no such model")
    for number in range(3):
        metrics.ended(Outcome("r", "edge"), f"invented-{number}", error)
        metrics.failed(error)
    found = rendered(metrics)
    assert found['shoal_requests_total{model="",outcome="model_not_found",tier="edge"}'] == 3, found
    assert found['shoal_failures_total{code="model_not_found"}'] == 3


def test_single_token_says_nothing_of_the_time_per_token() -> None:
    metrics = RequestMetrics()
    metrics.ended(outcome(tpot_ms=0.0), "m", None)
    assert not [name for name in rendered(metrics) if name.startswith("shoal_tpot_seconds_sum")]


def device(name: str = "pi", state: str = "READY", **load: Any) -> dict[str, Any]:
    counters = {"kv_host_hits": 7.0, "Bad name": 1.0, "kv_restore_ms_disk": "NaN"}
    engine = {"running": 2, "kv_used_tokens": "300", "counters": counters}
    return {
        "name": name,
        "state": state,
        "class": "arm_cpu",
        "load": load,
        "models": [{"name": "m", "load": engine}, {"name": "loading"}],
    }


def fleet(devices: list[dict[str, Any]] | None) -> dict[str, float]:
    return lines(RequestMetrics().render(FleetMetrics(devices)))


def test_devices_are_counted_by_state_and_engines_show_their_own_counters() -> None:
    found = fleet([device(power_w=6.5), device("b", "DOWN"), device("c", "LEFT")])
    assert found['shoal_devices{class="arm_cpu",state="READY"}'] == 1
    assert found['shoal_devices{class="arm_cpu",state="LEFT"}'] == 1
    assert found['shoal_engine_kv_used_tokens{device="pi",model="m"}'] == 300
    assert found['shoal_engine_kv_host_hits{device="pi",model="m"}'] == 7
    assert found['shoal_device_power_watts{device="pi"}'] == 6.5
    assert not [name for name in found if "Bad" in name or "restore" in name]


def test_missing_sensor_makes_no_series() -> None:
    assert not [name for name in fleet([device()]) if name.startswith("shoal_device_power")]


def test_without_a_hub_the_gateways_own_figures_remain() -> None:
    found = fleet(None)
    assert found["shoal_hub_reachable"] == 0
    assert found["shoal_requests_in_flight"] == 0


def test_series_of_devices_are_bounded() -> None:
    found = fleet([device(f"d{number}") for number in range(MAX_DEVICES + 3)])
    assert found["shoal_devices_left_out"] == 3
    running = [name for name in found if name.startswith("shoal_engine_running")]
    assert len(running) == MAX_DEVICES
