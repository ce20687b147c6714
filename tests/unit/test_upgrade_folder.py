from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from agent.upgrade.folder import UpgradeFolder
from shoal.onboarding.sources import control_script

_PYTHON = """#!/bin/sh
place=$(readlink -f "$(dirname "$(dirname "$0")")")
echo "$place" >>"$HOME/starts"
case $place in *broken*) exit 9 ;; *hangs*) exec sleep 600 ;; esac
echo asked >>"$HOME/old"
[ -f "$HOME/leave" ] && exit 0
touch "$HOME/leave"
exit 40
"""


def device(folder: Path) -> Path:
    """An installed device whose environments are scripts that say that they ran."""
    prefix = folder / "device"
    environment(prefix / "versions" / "old")
    (prefix / "current").symlink_to("versions/old")
    (prefix / "state").mkdir()
    (prefix / ".shoal-agent").write_text("service=none\nunit=x\nuser=x\n")
    (prefix / "agent.args").write_text("--name\npi\n")
    script = prefix / "shoal-agent"
    script.write_bytes(control_script().read_bytes())
    script.chmod(0o755)
    return prefix


def environment(place: Path) -> None:
    (place / "bin").mkdir(parents=True)
    python = place / "bin" / "python"
    python.write_text(_PYTHON)
    python.chmod(0o755)


def run(prefix: Path) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"HOME": str(prefix.parent)}
    return subprocess.run(
        [str(prefix / "shoal-agent"), "run"],
        text=True, capture_output=True, timeout=60, check=False, env=environ,
    )  # fmt: skip


def test_end_of_the_agent_is_left_for_the_installer(tmp_path: Path) -> None:
    prefix = device(tmp_path)
    environment(prefix / "versions" / "broken")
    (prefix / "current").unlink()
    (prefix / "current").symlink_to("versions/broken")
    (prefix / "state" / "connected").touch()
    assert run(prefix).returncode == 9
    assert (prefix / "state" / "exit-code").read_text() == "9\n"
    assert not (prefix / "state" / "connected").exists()


@pytest.mark.parametrize(
    ("release", "limit_s", "why"),
    [("broken", 30, "ended with code 9"), ("hangs", 1, "not confirmed within 1 s")],
)
def test_release_that_does_not_do_is_taken_back(
    tmp_path: Path, release: str, limit_s: int, why: str
) -> None:
    prefix = device(tmp_path)
    folder = UpgradeFolder(prefix / "state")
    environment(folder.versions / release)
    folder.switch(release, limit_s)
    done = run(prefix)
    assert done.returncode == 0, done.stderr
    state = folder.state()
    assert (state.trial, state.failed, state.failure) == ("", release, why)
    assert not (folder.path / "current").exists()
    started = (tmp_path / "starts").read_text().split()
    assert [Path(each).name for each in started] == [release, "old", "old"]


def test_release_that_was_kept_runs_from_then_on_and_older_ones_go(tmp_path: Path) -> None:
    folder = UpgradeFolder(tmp_path)
    for release in ("one", "two", "three"):
        environment(folder.versions / release)
        folder.switch(release, 30)
        assert folder.state().trial == release
        folder.keep()
        assert folder.state().trial == ""
    assert {path.name for path in folder.versions.iterdir()} == {"two", "three"}
    assert os.readlink(folder.path / "current") == "versions/three"


@pytest.mark.parametrize("joined", [True, False])
def test_uninstalling_names_the_fleets_part_only_where_there_is_one(
    tmp_path: Path, joined: bool
) -> None:
    prefix = device(tmp_path)
    with (prefix / ".shoal-agent").open("a") as settings:
        settings.write("name=pi\n")
    if joined:
        (prefix / "state" / "identity.json").touch()
    done = subprocess.run(
        [str(prefix / "shoal-agent"), "uninstall"],
        text=True, capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    assert ("shoal devices remove pi" in done.stdout) == joined
    assert ("had not joined" in done.stdout) != joined
    assert not prefix.exists()
