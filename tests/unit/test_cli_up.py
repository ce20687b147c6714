"""`shoal up`: what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.up import _model_argument
from tests.harness.models import smollm2_file


def test_file_becomes_an_absolute_path_and_a_name_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    file = smollm2_file()
    monkeypatch.chdir(file.parent)
    assert _model_argument(file.name) == str(file)
    assert _model_argument("smollm2-135m-instruct") == "smollm2-135m-instruct"


@pytest.mark.parametrize("content", [b"", b"hello", smollm2_file().read_bytes()[:100_000]])
def test_file_that_no_engine_could_load_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(CliError) as caught:
        _model_argument(str(file))
    assert caught.value.code is ExitCode.USAGE
    assert "--model" in caught.value.message
    assert str(file) in caught.value.message
    assert "SHA-256" in caught.value.remedy


@pytest.mark.parametrize("argument", ["missing.gguf", "folder/name", "."])
def test_what_is_no_file_is_refused(tmp_path: Path, argument: str) -> None:
    if argument == ".":
        argument = f"{tmp_path}/"
    with pytest.raises(CliError) as caught:
        _model_argument(argument)
    assert caught.value.code is ExitCode.USAGE
