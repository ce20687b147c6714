from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shoal.cli.bench_figures import Run, Target, bandwidth_utilisation, find_targets, summarise

TARGET = Target(
    device="npu",
    device_id="d",
    device_class="npu",
    emulated=False,
    model="llama-3.1-8b",
    quantisation="Q4_0",
    size_bytes=1_500_000_000,
    kv_bytes_per_token=100_000,
    context_tokens=4096,
    memory_bandwidth_gb_s=102.0,
)
# The article's NPU: 18 ms a token, 24 W.
RUN = Run(
    prompt_tokens=960,
    completion_tokens=65,
    prefill_ms=848.0,
    tpot_ms=18.0,
    joules=24.0 * 2.0,
    joules_estimated=True,
    edp_js=96.0,
)


def test_row_has_the_articles_figures_for_its_npu() -> None:
    row = summarise(TARGET, 1024, [RUN])
    assert row.tokens_per_s == pytest.approx(55.6, abs=0.05)
    assert row.tokens_per_joule == pytest.approx(2.32, abs=0.01)
    assert row.edp_js_per_token == pytest.approx(24.0 * 0.018**2)
    assert row.edp_js_per_request == 96.0
    assert row.prompt_tokens_per_s == pytest.approx(960 / 0.848)
    assert row.joules_estimated


def test_bandwidth_utilisation_counts_weights_and_kv() -> None:
    share = bandwidth_utilisation(TARGET, mean_context=1000, tokens_per_s=50)
    assert share == pytest.approx(1.6e9 * 50 / 102e9)
    unmeasured = replace(TARGET, memory_bandwidth_gb_s=None)
    assert bandwidth_utilisation(unmeasured, mean_context=1000, tokens_per_s=50) is None


def test_medians_are_of_all_runs() -> None:
    row = summarise(TARGET, 1024, [replace(RUN, tpot_ms=ms) for ms in (10.0, 20.0, 90.0)])
    assert row.ms_per_token == 20.0


def test_unknown_joules_stay_unknown() -> None:
    row = summarise(TARGET, 1024, [RUN, replace(RUN, joules=None, edp_js=None)])
    assert row.tokens_per_joule is None
    assert row.edp_js_per_token is None
    assert row.edp_js_per_request is None


def listed(name: str, state: str = "READY", model_state: str = "READY") -> dict[str, Any]:
    model = {
        "name": "m",
        "state": model_state,
        "size_bytes": 10,
        "context_tokens": 2048,
        "kv_bytes_per_token": 7,
        "quantisation": "Q4_1",
    }
    return {
        "name": name,
        "id": f"id-{name}",
        "state": state,
        "class": "arm_cpu",
        "emulated": True,
        "models": [model],
        "capabilities": {},
    }


def test_only_what_is_ready_is_measured_and_the_rest_is_named() -> None:
    devices = [listed("a"), listed("b", "DOWN"), listed("c", model_state="LOADING")]
    targets, skipped = find_targets(devices, (), ())
    assert [target.device for target in targets] == ["a"]
    assert targets[0].memory_bandwidth_gb_s is None
    assert targets[0].emulated
    assert skipped == ["b: down", "c m: loading"]


def test_devices_and_models_can_be_chosen_by_name_or_id() -> None:
    devices = [listed("a"), listed("b")]
    assert [t.device for t in find_targets(devices, ("id-b",), ())[0]] == ["b"]
    assert find_targets(devices, (), ("other",)) == ([], [])
