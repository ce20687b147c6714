"""What `shoal doctor` says of devices and of swapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.kv.sharing import FAULTS, NotShared
from shoal.cli.checks import Verdict
from shoal.cli.checks_devices import (
    check_devices,
    check_swapping,
    device_findings,
    sharing_findings,
)
from shoal.home import Home


def process(root: Path, pid: int, module: str, swapped_kib: int) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_text("\0".join(["python", "-m", module, "--name", "x"]))
    (folder / "status").write_text(f"Name:\tpython\nVmRSS:\t 9 kB\nVmSwap:\t {swapped_kib} kB\n")


def vmstat(root: Path, num_in: int, num_out: int) -> None:
    (root / "proc").mkdir(parents=True, exist_ok=True)
    (root / "proc/vmstat").write_text(f"pgfault 5\npswpin {num_in}\npswpout {num_out}\n")


def test_only_memory_of_agents_and_engines_counts_as_swapping(tmp_path: Path) -> None:
    vmstat(tmp_path, 100, 100)
    process(tmp_path, 1, "some.database", 900_000)
    process(tmp_path, 2, "agent.llama.serve", 0)
    (finding,) = check_swapping(tmp_path, lambda _: vmstat(tmp_path, 500, 500))
    assert finding.verdict is Verdict.OK


@pytest.mark.parametrize(("moved", "words"), [(40, "40 pages moved"), (0, "not moved within")])
def test_engines_in_swap_are_named_with_what_moves(tmp_path: Path, moved: int, words: str) -> None:
    vmstat(tmp_path, 100, 100)
    process(tmp_path, 7, "agent.llama.serve", 2048)
    (finding,) = check_swapping(tmp_path, lambda _: vmstat(tmp_path, 100 + moved, 100))
    assert (finding.name, finding.verdict) == ("swapping", Verdict.NOTE)
    assert words in finding.detail
    assert "agent.llama.serve 7" in finding.detail
    assert finding.remedy


def test_a_system_without_these_figures_is_not_judged(tmp_path: Path) -> None:
    assert check_swapping(tmp_path, lambda _: None) == []


def device(name: str, *, conditions: tuple[str, ...] = (), **model: Any) -> dict[str, Any]:
    told = {"name": "m", "state": "READY", "caches_blocks": True, "no_cache_reason": ""} | model
    return {
        "name": name,
        "state": "READY",
        "load": {"conditions": list(conditions)},
        "models": [told],
    }


def shares(not_shared: str) -> dict[str, Any]:
    return {"kv_sharing": {"policy": "always", "write_bytes_per_s": "0", "not_shared": not_shared}}


def test_conditions_of_devices_are_named_and_the_rest_counted() -> None:
    devices = [
        device("a", conditions=("swapping", "kv_sharing_unreachable")),
        device("b"),
        device("c", conditions=("kv_sharing_unreachable",)),
        device("d", conditions=("new\x1b[2J",)),
        device("e", conditions=("throttled",)) | {"state": "DOWN"},
    ]
    swapping, unknown, well = device_findings(devices)
    assert (swapping.name, swapping.verdict) == ("device a", Verdict.NOTE)
    assert swapping.detail.startswith("swapping: ")
    assert swapping.remedy
    assert unknown.detail == "new[2J: as the device says"
    assert well.detail == "2 ready and without complaint"


def test_reasons_why_nothing_is_shared_are_told_once_each() -> None:
    devices = [
        device("a", load=shares("")),
        device("b", load=shares("unreachable")),
        device("c", load=shares("unreachable")),
        device("d", load=shares("policy_never")),
        device("e", caches_blocks=False, no_cache_reason="it is recurrent"),
        device("f", load=shares("auth_failed")) | {"state": "SUSPECT"},
        device("g", state="LOADING", load=None),
    ]
    shared, by_wish, unreachable, uncached = sharing_findings(devices)
    assert (shared.verdict, shared.detail) == (Verdict.OK, "1 engines share them")
    assert by_wish.verdict is Verdict.OK
    assert by_wish.detail.startswith("not by d m: policy_never")
    assert unreachable.verdict is Verdict.NOTE
    assert unreachable.detail.startswith("not by b m, c m: unreachable")
    assert unreachable.remedy
    assert uncached.detail == "off for e m: it is recurrent"


@pytest.mark.parametrize("reason", [each for each in NotShared if each is not NotShared.LOCAL_ONLY])
def test_every_reason_is_explained_and_every_fault_has_a_remedy(reason: NotShared) -> None:
    (finding,) = sharing_findings([device("a", load=shares(reason.value))])
    assert "newer agent" not in finding.detail
    assert bool(finding.remedy) is (reason in FAULTS)


def test_without_a_fleet_nothing_is_said_of_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOAL_URL", raising=False)
    assert check_devices(Home(tmp_path)) == []
    monkeypatch.setenv("SHOAL_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("SHOAL_API_KEY", "k")
    (finding,) = check_devices(Home(tmp_path))
    assert (finding.name, finding.verdict) == ("devices", Verdict.NOTE)
