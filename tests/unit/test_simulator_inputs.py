import json
import xml.etree.ElementTree as ET

import pytest

from orchestrator.simulator.errors import InputError
from orchestrator.simulator.fleet_file import article_fleet, load_fleet
from orchestrator.simulator.plot import svg
from orchestrator.simulator.study import Study, run_study
from orchestrator.simulator.workload import MIX, capacity_per_s, recorded, synthetic

KIND = {
    "name": "pi",
    "class": "arm_cpu",
    "count": 3,
    "decode_tokens_per_s": 5.0,
    "prefill_tokens_per_s": 20.0,
    "busy_power_w": 8.0,
    "idle_power_w": 2.0,
}
LINE = {
    "arrival_ms": 5,
    "model": "m",
    "num_parameters": 1e9,
    "prompt_tokens": 10,
    "completion_tokens": 4,
}


def toml_of(kind):
    return "[[kind]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in kind.items())


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_fleet_file_is_read(tmp_path, suffix):
    file = tmp_path / f"fleet{suffix}"
    file.write_text(toml_of(KIND) if suffix == ".toml" else json.dumps({"kind": [KIND]}))
    fleet = load_fleet(file)
    assert fleet.num_devices == 3
    assert fleet.kinds[0].device_class == "arm_cpu"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"class": "toaster"}, "`class` must be one of"),
        ({"colour": "red"}, "unknown field 'colour'"),
        ({"count": 0}, "must be numbers above 0"),
        ({"decode_tokens_per_s": "fast"}, "must be numbers above 0"),
    ],
)
def test_fleet_file_with_a_wrong_field_is_refused_by_name(tmp_path, change, said):
    file = tmp_path / "fleet.toml"
    file.write_text(toml_of({**KIND, **change}))
    with pytest.raises(InputError, match=said):
        load_fleet(file)


def test_fleet_file_without_a_needed_field_is_refused_by_name(tmp_path):
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps({"kind": [{k: v for k, v in KIND.items() if k != "busy_power_w"}]}))
    with pytest.raises(InputError, match="busy_power_w"):
        load_fleet(file)


@pytest.mark.parametrize("text", ["", "kind = 3", "not toml ["])
def test_file_that_is_no_fleet_is_refused(tmp_path, text):
    file = tmp_path / "fleet.toml"
    file.write_text(text)
    with pytest.raises(InputError):
        load_fleet(file)


def test_scaled_fleet_keeps_its_mix_and_its_number():
    fleet = article_fleet().scaled_to(1_003)
    assert fleet.num_devices == 1_003
    assert {kind.count for kind in fleet.kinds[1:]} == {250}


def test_article_fleet_has_the_article_figures():
    npu = article_fleet().kinds[0]
    assert npu.step_ms(8_030_000_000, 1) == pytest.approx(18.0, abs=0.1)
    assert npu.decode_tokens_per_s / npu.busy_power_w == pytest.approx(2.32, abs=0.01)


def test_recording_is_read_in_order_of_arrival(tmp_path):
    file = tmp_path / "requests.jsonl"
    file.write_text(json.dumps(LINE) + "\n\n" + json.dumps({**LINE, "arrival_ms": 1, "tpot_ms": 9}))
    first, second = recorded(file)
    assert (first.arrival_ms, first.slo.tpot_ms, first.slo.ttft_ms) == (1, 9, None)
    assert second.model.num_parameters == 1_000_000_000
    assert (first.tenant, first.priority) == ("simulated", 0)


def test_recording_may_name_tenants_and_priorities(tmp_path):
    file = tmp_path / "requests.jsonl"
    file.write_text(json.dumps({**LINE, "tenant": "a", "priority": -3}))
    (job,) = recorded(file)
    assert (job.tenant, job.priority) == ("a", -3)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2"),
        (json.dumps({"arrival_ms": 1}), "line 2: model is missing"),
        (json.dumps({**LINE, "arrival_ms": -1}), "line 2: arrival_ms must be"),
        (json.dumps({**LINE, "priority": 0.5}), "line 2: priority must be"),
        ("[]", "line 2"),
    ],
)
def test_recording_with_a_wrong_line_is_refused_by_its_number(tmp_path, line, said):
    file = tmp_path / "requests.jsonl"
    file.write_text(json.dumps(LINE) + "\n" + line)
    with pytest.raises(InputError, match=said):
        recorded(file)


def test_synthetic_arrivals_have_the_stated_rate_and_mix():
    jobs = list(synthetic(20_000, 50.0, seed=1))
    assert jobs[-1].arrival_ms / 1000 == pytest.approx(400, rel=0.05)
    share = sum(job.model == MIX[0].model for job in jobs) / len(jobs)
    assert share == pytest.approx(MIX[0].share, abs=0.02)


def test_capacity_grows_with_the_fleet():
    assert capacity_per_s(article_fleet(20)) == pytest.approx(2 * capacity_per_s(article_fleet(10)))


def test_plot_is_well_formed_and_names_every_policy():
    runs = run_study(Study(article_fleet(2), num_requests=50))["runs"]
    drawing = ET.fromstring(svg(runs))
    texts = {element.text for element in drawing.iter() if element.tag.endswith("text")}
    assert {run["policy"] for run in runs} <= texts
