"""What an ordered upgrade does about the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.upgrade import installing
from agent.upgrade.folder import UpgradeFolder
from shoal.v1 import device_pb2 as pb


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Children are only noted; the environment is a copy of nothing."""
    commands: list[str] = []

    async def run(command: Sequence[str], *_: object) -> str:
        commands.append(" ".join(command))
        return ""

    monkeypatch.setattr(installing, "_run", run)
    monkeypatch.setattr(installing, "_copy_environment", lambda target: target.mkdir(parents=True))
    (tmp_path / "prefix" / "models").mkdir(parents=True)
    return commands


async def upgrade(folder: Path) -> None:
    order = installing.Order("1.2", [pb.UpgradeFile(name="shoal_agent-1.2.whl", sha256="a" * 64)])
    await installing.install(order, folder, UpgradeFolder(folder / "state"), folder / "prefix")


async def test_engine_is_proven_with_the_model_that_the_script_left(
    tmp_path: Path, ran: list[str]
) -> None:
    model = tmp_path / "prefix" / "models" / "a.gguf"
    model.touch()
    await upgrade(tmp_path)
    (build,) = [command for command in ran if "build_engine.py" in command]
    assert build.endswith(f"--model {model}")


async def test_device_without_an_engine_gets_none_by_an_upgrade(
    tmp_path: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(target: Path) -> None:
        target.mkdir(parents=True)
        (target / installing.WITHOUT_ENGINE).touch()

    monkeypatch.setattr(installing, "_copy_environment", copy)
    await upgrade(tmp_path)
    assert not [command for command in ran if "build_engine.py" in command]
    assert ran[-1].endswith("import agent.app")
