import json
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.kv.gguf_header import HeaderError, kv_shape, read_keys
from agent.rpc.fit import main
from shoal.cli.app import app
from tests.harness.models import smollm2_file


def test_the_geometry_of_a_real_file_is_read_from_its_header() -> None:
    shape, trained_tokens = kv_shape(read_keys(smollm2_file()), "f16")
    assert (shape.num_layers, shape.num_kv_heads, shape.key_head_dim) == (30, 3, 64)
    assert shape.bytes_per_token == 23_040
    assert trained_tokens == 8192


@pytest.mark.parametrize("cut", [0, 3, 20, 30, 100])
def test_a_cut_header_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(smollm2_file().read_bytes()[:cut])
    with pytest.raises(HeaderError):
        read_keys(path)


def test_absurd_lengths_are_refused_before_they_are_believed(tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    path.write_bytes(struct.pack("<4sIQQQ", b"GGUF", 3, 1, 1, 1 << 60))
    with pytest.raises(HeaderError, match="string"):
        read_keys(path)


def test_keys_that_are_missing_are_named() -> None:
    with pytest.raises(HeaderError, match=r"llama\.attention\.head_count"):
        kv_shape({"general.architecture": "llama"}, "f16")


def test_heads_may_differ_from_layer_to_layer() -> None:
    keys = {
        "general.architecture": "x", "x.attention.head_count": [8, 8],
        "x.attention.head_count_kv": [2, 4], "x.embedding_length": 512, "x.block_count": 2,
        "x.context_length": 1024,
    }  # fmt: skip
    shape, _ = kv_shape(keys, "f16")  # type: ignore[arg-type]
    assert shape.bytes_per_token == 2 * 3 * 128 * 2


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


def test_the_command_shows_the_calculation() -> None:
    shown = CliRunner().invoke(app, ["models", "fit", str(smollm2_file()), "--memory-mib", "4000"])
    assert shown.exit_code == 0
    assert "30 layers x 3 KV heads x (64 + 64) x 2 B" in shown.stdout
    assert CliRunner().invoke(app, ["models", "fit", "no-such"]).exit_code == 2
