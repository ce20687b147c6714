"""Joules from the engine's steps to the answer, the record, the metrics and `shoal bench`."""

from __future__ import annotations

import pytest

from tests.harness.fleet import Fleet


def test_answer_and_record_tell_joules_and_edp(fleet: Fleet) -> None:
    body = {"model": fleet.model, "prompt": "Three fish:", "max_tokens": 8, "ignore_eos": True}
    with fleet.http() as http:
        told = http.post("/v1/completions", json=body).json()["shoal"]
    assert told["joules"] > 0
    seconds = told["actual"]["total_ms"] / 1000
    assert told["edp_js"] == pytest.approx(told["joules"] * seconds, rel=0.01, abs=1e-3)
    record = fleet.json("explain", told["request_id"])
    assert record["actual"]["joules"] == pytest.approx(told["joules"], abs=1e-3)
    assert record["actual"]["joules_estimated"] == told["joules_estimated"]
    with fleet.http((fleet.home / "keys" / "admin.key").read_text().strip()) as http:
        metrics = http.get("/metrics").text
    assert "shoal_joules_total{" in metrics
    assert "shoal_engine_compute_seconds{" in metrics


def test_bench_measures_each_model_of_each_device(fleet: Fleet) -> None:
    told = fleet.json("bench", "--length", "160", "--tokens", "16", "--repeats", "1")
    (row,) = told["rows"]
    assert (row["device"], row["model"], row["length"]) == ("local-1", fleet.model, 160)
    assert row["tokens_per_s"] == pytest.approx(1000 / row["ms_per_token"])
    assert row["tokens_per_joule"] > 0
    assert row["edp_js_per_token"] > 0
    assert 0 < row["bandwidth_utilisation"] < 2
