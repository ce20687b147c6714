from __future__ import annotations

from pathlib import Path

import pytest

from agent.session.config import read_config
from agent.session.errors import AgentError, ExitCode


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHOAL_HOME", "SHOAL_AGENT_HOME", "SHOAL_AGENT_NAME", "SHOAL_JOIN", "SHOAL_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_flags_win_over_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_AGENT_NAME", "from-environment")
    monkeypatch.setenv("SHOAL_JOIN", "http://from-environment")
    config = read_config(["--name", "pi", "--home", str(tmp_path)])
    assert (config.name, config.join_url) == ("pi", "http://from-environment")
    assert config.home == tmp_path


def test_home_defaults_to_the_agents_folder_of_the_state_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    assert read_config(["--name", "pi"]).home == tmp_path / "agents" / "pi"


def test_token_comes_from_a_file_and_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("shoal-join.secret\n")
    config = read_config(["--token-file", str(file)])
    assert config.token == "shoal-join.secret"
    assert "secret" not in repr(config)


def test_missing_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="absent") as caught:
        read_config(["--token-file", str(tmp_path / "absent")])
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("flags", [["--slots", "0"], ["--class", "toaster"], ["--context", "x"]])
def test_bad_flags_end_with_the_usage_code(flags: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read_config(flags)
    assert caught.value.code == ExitCode.USAGE


def test_engine_arguments_are_passed_on() -> None:
    config = read_config(["--engine-arg=--no-measure", "--slots", "3", "--model", "a", "--model=b"])
    assert config.engine_arguments == ("--no-measure",)
    assert (config.slots, config.models) == (3, ("a", "b"))
