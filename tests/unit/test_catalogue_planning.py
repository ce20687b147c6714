"""Which device is to serve which variant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.catalogue.model import Deployment, DeviceFacts, ModelFacts, Placement, Variant
from orchestrator.catalogue.planning import AWAY_LIMIT_MS, HEARD_WITHIN_MS, Situation, plan
from orchestrator.fleet.view import DeviceId
from shoal.selector import parse_selector

GIB = 1 << 30
NOW = 1_000_000_000


def variant(quantisation: str = "Q4_0", **fields: object) -> Variant:
    made = Variant(
        sha256=quantisation.lower().ljust(64, "0"), model="m", file="m.gguf", path="/m.gguf",
        quantisation=quantisation, architecture="llama", num_parameters=10**9,
        size_bytes=GIB // 2, context_tokens=8192, num_layers=16, num_kv_heads=8, key_head_dim=64,
        value_head_dim=64, has_chat_template=True, source="x", added_unix_ms=0,
    )  # fmt: skip
    return replace(made, **fields)  # type: ignore[arg-type]


def device(name: str, **fields: object) -> DeviceFacts:
    made = DeviceFacts(
        device_id=DeviceId(f"id-{name}"), name=name, labels={"name": name, "class": "arm_cpu"},
        ready=True, total_bytes=8 * GIB, available_bytes=6 * GIB, models={}, seen_unix_ms=NOW,
    )  # fmt: skip
    return replace(made, **fields)  # type: ignore[arg-type]


def planned(*devices: DeviceFacts, **fields: object) -> dict[str, Placement]:
    deployment = Deployment("m", "*", 0, 1)
    situation = Situation(
        deployments=[deployment], variants=[variant()], devices=devices, earlier={}, failures={},
        now_unix_ms=NOW,
    )  # fmt: skip
    return {each.device_name: each for each in plan(replace(situation, **fields))}  # type: ignore[arg-type]


def serving(**fields: object) -> dict[str, ModelFacts]:
    made = ModelFacts("READY", variant().sha256, deployed=True)
    return {"m": replace(made, **fields)}  # type: ignore[arg-type]


def test_every_selected_device_gets_the_model_with_the_calculation() -> None:
    found = planned(device("a"), device("b"))
    assert all(each.desired and each.actual == "waiting" for each in found.values())
    assert found["a"].slots > 0
    assert any("weights" in line for line in found["a"].calculation)


def test_model_that_does_not_fit_is_not_placed_and_says_why() -> None:
    found = planned(device("a", available_bytes=GIB), device("b"))
    assert not found["a"].desired
    assert "do not fit" in found["a"].reason
    assert any("does not fit" in line for line in found["a"].calculation)
    assert found["b"].desired


def test_what_was_promised_to_a_device_is_not_promised_twice() -> None:
    deployments = [Deployment("m", "*", 0, 1), Deployment("n", "*", 0, 2)]
    big = 2 * GIB
    variants = [variant(size_bytes=big), variant(model="n", sha256="n" * 64, size_bytes=big)]
    small = device("a", available_bytes=4 * GIB)
    situation = Situation(deployments, variants, [small], {}, {}, NOW)
    first, second = plan(situation)
    assert first.desired
    assert not second.desired


def test_replicas_go_to_who_serves_already_then_to_most_memory() -> None:
    devices = [
        device("a"), device("b", available_bytes=7 * GIB), device("c", models=serving()),
    ]  # fmt: skip
    found = planned(*devices, deployments=[Deployment("m", "*", 2, 1)])
    assert {name for name, each in found.items() if each.desired} == {"b", "c"}
    assert found["c"].actual == "serves"
    assert "not needed" in found["a"].reason


def test_device_that_is_away_keeps_its_place_for_a_while() -> None:
    wanted = [Deployment("m", "*", 1, 1)]
    chosen = planned(device("a"), deployments=wanted)["a"]
    earlier = {("m", chosen.device_id): chosen}
    for away_ms, keeps in ((AWAY_LIMIT_MS - 1, True), (AWAY_LIMIT_MS + 1, False)):
        gone = device("a", ready=False, seen_unix_ms=NOW - away_ms)
        found = planned(gone, device("b"), deployments=wanted, earlier=earlier)
        assert (found["a"].desired, found["b"].desired) == (keeps, not keeps)


def test_what_a_dead_hub_said_is_not_believed_for_long() -> None:
    stale = device("a", seen_unix_ms=NOW - HEARD_WITHIN_MS - 1)
    assert planned(stale)["a"].actual == "away"


def test_bad_file_marks_the_variant_and_the_next_is_taken() -> None:
    both = [variant("Q4_0"), variant("Q8_0", size_bytes=GIB)]
    bad = both[0].sha256
    found = planned(device("a"), variants=both, failures={bad: {"id-a": "killed by SIGSEGV"}})
    assert found["a"].quantisation == "Q8_0"
    found = planned(device("a"), failures={bad: {"id-a": "killed by SIGSEGV"}})
    assert (found["a"].desired, found["a"].actual) == (False, "failed")
    assert "SIGSEGV" in found["a"].reason
    two = {bad: {"id-x": "one", "id-y": "two"}}
    assert "failed on 2 devices" in planned(device("a"), failures=two)["a"].reason


def test_fetch_that_failed_is_tried_again_and_said() -> None:
    failed = {"m": ModelFacts("FAILED", deployed=True, failure="no room", failure_kind="DISK")}
    found = planned(device("a", models=failed))
    assert found["a"].desired
    assert "no room" in found["a"].reason


def test_model_that_the_owner_started_counts_and_is_left_alone() -> None:
    own = {"m": ModelFacts("READY", "f" * 64)}
    assert planned(device("a", models=own))["a"].actual == "serves"


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("*", True), ("class=gpu", True), ("class!=gpu", False), ("site", True), ("!site", False),
        ("class=gpu,site=lab", True), ("class=gpu,site=hall", False), ("nothing!=x", True),
    ],
)  # fmt: skip
def test_selectors(selector: str, matches: bool) -> None:
    assert parse_selector(selector).matches({"class": "gpu", "site": "lab"}) is matches


@pytest.mark.parametrize("selector", ["", " ", "a=", "=b", "a,,b", "a b", "!", "a=*"])
def test_bad_selectors_are_refused(selector: str) -> None:
    with pytest.raises(ValueError, match=r"label|selector"):
        parse_selector(selector)
