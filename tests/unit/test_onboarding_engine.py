"""What install.sh proves the engine with, and when it installs none."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from shoal.onboarding import script

SOURCE = Path(script.__file__).with_name("install.sh").read_text(encoding="utf-8")
LAST_LINE = 'main "$@" </dev/null\n'
SERVED = b"GGUF, as the fleet has it"


class Installer:
    """The script with all settled, where it installs the engine; Python notes its arguments."""

    def __init__(self, folder: Path) -> None:
        self.target, self.work, self.prefix = (folder / n for n in ("target", "work", "prefix"))
        for made in (self.target / "bin", self.work, self.prefix / "models"):
            made.mkdir(parents=True)
        python = self.target / "bin" / "python"
        python.write_text(f'#!/bin/sh\necho "$@" >>{folder}/ran\n')
        python.chmod(0o755)
        self._ran = folder / "ran"
        self._sums("")

    def serve_model(self) -> None:
        """The fleet hands out the default model; a bundle has it in the work folder already."""
        name = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
        (self.work / "models").mkdir()
        (self.work / name).write_bytes(SERVED)
        self._sums(f"{hashlib.sha256(SERVED).hexdigest()}  {name}\n")

    def _sums(self, text: str) -> None:
        (self.work / "SHA256SUMS").write_text(text)

    def ran(self, engine: str, *models: str) -> str:
        """What Python was run with, a line a run."""
        self._ran.write_text("")
        (self.work / "model_arguments").write_text("".join(f"{model}\n" for model in models))
        settled = f"""
            prefix='{self.prefix}' target='{self.target}' work='{self.work}' step_name=''
            engine={engine} models='{" ".join(models)}' bundle=b caches=/none python=python3
            from_wheel() {{ echo smollm2-135m-instruct; }}
            install_engine
        """
        done = subprocess.run(
            ["sh", "-s"], input=SOURCE.removesuffix(LAST_LINE) + settled, text=True,
            capture_output=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert (self.target / "complete").exists()
        return self._ran.read_text()


@pytest.fixture
def installer(tmp_path: Path) -> Installer:
    return Installer(tmp_path)


def test_engine_is_proven_with_the_fleets_model_and_not_with_one_that_may_be_damaged(
    installer: Installer, tmp_path: Path
) -> None:
    given = tmp_path / "damaged.gguf"
    given.touch()
    installer.serve_model()
    assert f"--model {installer.work}/models/SmolLM2" in installer.ran("cached", str(given))


def test_engine_is_proven_with_the_devices_model_where_the_fleet_has_none(
    installer: Installer, tmp_path: Path
) -> None:
    given = tmp_path / "own.gguf"
    given.touch()
    assert f"--model {given}" in installer.ran("cached", str(given))


def test_engine_for_companions_alone_is_proven_with_the_fleets_model(installer: Installer) -> None:
    installer.serve_model()
    assert f"--model {installer.work}/models/SmolLM2" in installer.ran("cached")


def test_without_a_use_for_an_engine_none_is_built_until_there_is_one(installer: Installer) -> None:
    assert "build_engine" not in installer.ran("none")
    assert installer.ran("none") == ""
    installer.serve_model()
    assert "build_engine" in installer.ran("compile", "smollm2-135m-instruct")
    assert not (installer.target / "without_engine").exists()
    assert installer.ran("compile", "smollm2-135m-instruct") == ""


def test_without_any_model_to_prove_it_with_companions_alone_get_no_engine(
    installer: Installer,
) -> None:
    assert "build_engine" not in installer.ran("cached")
