import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.rpc.fit import main
from shoal.cli.app import app
from shoal.gguf_facts import scan
from tests.harness.models import smollm2_file


def test_the_geometry_of_a_real_file_is_read_from_its_header() -> None:
    facts = scan(smollm2_file())
    shape = facts.kv_shape("f16")
    assert (shape.num_layers, shape.num_kv_heads, shape.key_head_dim) == (30, 3, 64)
    assert shape.bytes_per_token == 23_040
    assert facts.context_tokens == 8192


def test_the_calculation_is_printed_and_lowers_what_does_not_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([str(smollm2_file()), "--memory-mib", "2000", "--slots", "8"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["fits"]
    assert document["bytes_per_token"] == 23_040
    assert document["slots"] < 8
    assert any("lowered" in line for line in document["lines"])


def test_a_model_that_is_not_here_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-model"]) == 2
    assert "no such file" in capsys.readouterr().err


def test_a_damaged_file_is_bad_input_with_its_defect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(smollm2_file().read_bytes()[:100])
    assert main([str(path)]) == 2
    assert "more than it can hold [limit]" in capsys.readouterr().err


def test_the_command_shows_the_calculation() -> None:
    shown = CliRunner().invoke(app, ["models", "fit", str(smollm2_file()), "--memory-mib", "4000"])
    assert shown.exit_code == 0
    assert "30 layers x 3 KV heads x (64 + 64) x 2 B" in shown.stdout
    smaller = CliRunner().invoke(app, ["models", "fit", str(smollm2_file()), "--kv-type", "q8_0"])
    assert "30 layers x 3 KV heads x (64 + 64) x 1.0625 B, q8_0" in smaller.stdout
    assert CliRunner().invoke(app, ["models", "fit", "no-such"]).exit_code == 2


def test_what_does_not_fit_ends_with_an_exit_code_of_its_own() -> None:
    fit = ["models", "fit", str(smollm2_file())]
    ended = CliRunner().invoke(app, [*fit, "--memory-mib", "1"])
    assert ended.exit_code == 1
    assert ended.stdout.splitlines()[-1].startswith("does not fit")
    ended = CliRunner().invoke(app, [*fit, "--memory-mib", "1", "--json"])
    assert ended.exit_code == 1
    assert json.loads(ended.stdout)["fits"] is False


def test_more_slots_than_any_device_has_are_lowered_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([str(smollm2_file()), "--memory-mib", "4000", "--slots", "100000000"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert 0 < document["slots"] < 100
    assert "too little for 100000000 slots" in document["lines"][-1]
    assert " 0 tokens" not in document["lines"][-1]


def test_what_is_no_regular_file_and_what_is_no_path_are_told_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in (tmp_path, tmp_path / "pipe.gguf"):
        assert main([str(path)]) == 2
        assert "not a regular file" in capsys.readouterr().err
    assert main(["x" * 5000]) == 2
    assert "no such file" in (told := capsys.readouterr().err)
    assert len(told) < 500
