from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack, closing
from dataclasses import astuple
from pathlib import Path

import pytest

from orchestrator.actors.ports import FleetPorts, PortBlocks
from shoal.ports import port_is_free


def choose(saved: Path, num_hubs: int = 1) -> FleetPorts:
    """As a fleet that ends at once."""
    with closing(PortBlocks()) as held:
        return held.choose(saved, num_hubs)


def every(ports: FleetPorts) -> set[int]:
    hubs, *others = astuple(ports)
    return {port for hub in hubs for port in hub} | set(others)


def test_fleets_that_choose_at_once_never_share_a_port(tmp_path: Path) -> None:
    with ExitStack() as stack:
        fleets = [stack.enter_context(closing(PortBlocks())) for _ in range(40)]
        chosen = [fleet.choose(tmp_path / f"{i}.json", 3) for i, fleet in enumerate(fleets)]
    assert len(set.union(*map(every, chosen))) == sum(len(every(ports)) for ports in chosen)


def test_block_of_another_process_is_not_chosen_and_is_free_when_it_ends(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from orchestrator.actors.ports import PortBlocks\n"
        "blocks = PortBlocks(); blocks.choose(pathlib.Path(sys.argv[1]))\n"
        "print(flush=True); sys.stdin.read()"
    )
    saved = tmp_path / "ports.json"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(saved)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        first = json.loads(saved.read_text())["hubs"][0]["enrol"]
        assert not port_is_free(first - 1)
        assert choose(saved).hubs[0].enrol != first
        saved.write_text(json.dumps({"hubs": [{"enrol": first, "link": first + 1}]}))
        other.communicate()
    assert choose(saved).hubs[0].enrol == first


def test_hubs_keep_their_ports_over_a_restart_and_new_ones_get_others(tmp_path: Path) -> None:
    saved = tmp_path / "ports.json"
    before = choose(saved, 2)
    after = choose(saved, 3)
    assert after.hubs[:2] == before.hubs
    assert len(every(after)) == len(every(before)) + 2
    assert choose(saved, 1).hubs == before.hubs[:1]


def test_more_hubs_than_a_block_has_ports_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="50 hubs need 137 ports"):
        choose(tmp_path / "ports.json", 50)
