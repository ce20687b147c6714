"""Which agent of this machine a command is about, and how `shoal agent run` starts one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli import agent_homes
from shoal.cli.access import KvTypeOption
from shoal.cli.app import app
from shoal.kv_budget import ELEMENT_BYTES


class Started(Exception):
    """In the place of the process that a command becomes."""


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an installed agent would lie; SHOAL_HOME is beside it."""
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(agent_homes, "agent_prefixes", lambda: [tmp_path / "prefix"])
    return tmp_path / "prefix"


def joined(home: Path, name: str) -> Path:
    home.mkdir(parents=True)
    (home / "identity.json").write_text(json.dumps({"name": name}))
    return home


def started(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    """The command line that `shoal agent` becomes."""
    commands: list[list[str]] = []

    def execve(_file: str, command: list[str], _environment: dict[str, str]) -> None:
        commands.append(command)
        raise Started

    monkeypatch.setattr(os, "execve", execve)
    result = CliRunner().invoke(app, ["agent", *arguments])
    assert isinstance(result.exception, Started), result.output
    return commands[0]


def home_in(command: list[str]) -> Path:
    return Path(command[command.index("--home") + 1])


def refused(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["agent", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_calibration_is_for_the_one_agent_that_is_here(
    prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = joined(prefix / "state", "pi-7")
    assert home_in(started(monkeypatch, "calibrate")) == installed
    local = joined(tmp_path / "home" / "agents" / "local-1", "local-1")
    assert home_in(started(monkeypatch, "calibrate", "--name", "local-1")) == local
    assert home_in(started(monkeypatch, "calibrate", "--name", "pi-7")) == installed
    assert home_in(started(monkeypatch, "calibrate", "--state-dir", str(local))) == local


def test_an_installed_command_line_knows_its_own_prefix(
    prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = joined(tmp_path / "elsewhere" / "state", "pi-8")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "elsewhere" / "versions" / "1"))
    assert home_in(started(monkeypatch, "calibrate")) == own


def test_calibration_names_the_agents_where_there_are_several_or_none(
    prefix: Path, tmp_path: Path
) -> None:
    code, told = refused("calibrate")
    assert code == 8
    assert "--state-dir" in told
    joined(prefix / "state", "pi-7")
    joined(tmp_path / "home" / "agents" / "local-1", "local-1")
    code, told = refused("calibrate")
    assert code == 2
    assert "pi-7 (" in told
    assert "local-1 (" in told
    assert "--name" in told
    code, told = refused("calibrate", "--name", "pi-9")
    assert code == 8
    assert "pi-7 (" in told
    code, told = refused("calibrate", "--state-dir", str(tmp_path / "no-such"))
    assert code == 8
    assert refused("calibrate", "--state-dir", "x" * 5000)[0] == 8


@pytest.mark.parametrize("name", ["../../../evil", "x" * 300, "a/b", "", "0" * 32])
def test_a_name_that_no_fleet_takes_makes_no_folder(
    prefix: Path, tmp_path: Path, name: str
) -> None:
    joined(prefix / "state", "pi-7")
    code, told = refused("calibrate", "--name", name)
    assert code == 2
    assert "--name" in told
    if name:  # an empty one means the host's
        code, told = refused("run", "--join", "http://localhost:1", "--name", name)
        assert code == 2
        assert "--name" in told
    assert not (tmp_path / "home").exists()
    assert not (tmp_path / "evil").exists()


def test_agent_is_run_with_the_kv_types_that_it_takes(
    prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(KvTypeOption) == {"auto", *ELEMENT_BYTES}
    run = ("run", "--join", "http://localhost:1", "--name", "pi-7")
    command = started(monkeypatch, *run, "--kv-type", "auto")
    assert command[command.index("--kv-type") + 1] == "auto"
    command = started(monkeypatch, *run, "--model", "x" * 5000)
    assert command[command.index("--kv-type") + 1] == "auto"
    code, told = refused(*run, "--state-dir", "x" * 300)
    assert code == 2
    assert "--state-dir" in told


def test_status_tells_what_was_calibrated_and_why_something_was_not(prefix: Path) -> None:
    home = joined(prefix / "state", "pi-7")
    kept = {"file": "/m/A.Q4_0.gguf", "threads": None, "slots": 4, "kv": {"failure": "killed"}}
    rows = {"a": kept, "b": {"failure": "30 s are too short"}}
    (home / "calibration.json").write_text(json.dumps(rows))
    code, told = refused("status")
    assert code == 0
    assert "calibrated: a: A.Q4_0.gguf, all threads, 4 slots; q8_0 KV: killed" in told
    assert "not calibrated: b: 30 s are too short" in told
