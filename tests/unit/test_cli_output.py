import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from shoal import cli
from shoal.cli.commands import reported
from shoal.cli.decisions import _two_lines_each
from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.output import answer_console, bytes_text, joules_text, ms_text, notes

CLI = Path(cli.__file__).parent


def failing_app() -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @reported
    def fail(as_json: bool = typer.Option(False, "--json")) -> None:
        raise CliError(ExitCode.BUSY, "no [device] is free", "wait")

    return app


def test_error_ends_with_its_exit_code_and_names_the_remedy() -> None:
    result = CliRunner().invoke(failing_app(), [])
    assert result.exit_code == ExitCode.BUSY
    assert result.stdout == ""
    assert "no [device] is free" in result.stderr
    assert "wait" in result.stderr


def test_error_is_one_json_document_on_request() -> None:
    result = CliRunner().invoke(failing_app(), ["--json"])
    assert json.loads(result.stdout)["error"]["exit_code"] == ExitCode.BUSY


def test_exit_codes_are_stable() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0, "FAILED": 1, "USAGE": 2, "NOT_RUNNING": 3, "PORT_IN_USE": 4, "START_FAILED": 5,
        "UNREACHABLE": 6, "NOT_ALLOWED": 7, "NOT_FOUND": 8, "REFUSED": 9, "BUSY": 10,
        "DOCTOR_FOUND": 11, "STOP_INCOMPLETE": 12, "ALREADY_RUNNING": 13, "INTERRUPTED": 130,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (92_000_000, "92.0 MB")]
)
def test_sizes_read_naturally(num_bytes: int, text: str) -> None:
    assert bytes_text(num_bytes) == text


@pytest.mark.parametrize(("ms", "text"), [(None, "-"), (12.34, "12.3 ms"), (4560.0, "4.56 s")])
def test_durations_read_naturally(ms: float | None, text: str) -> None:
    assert ms_text(ms) == text


def test_what_is_piped_is_not_cut_at_a_terminals_width(capsys) -> None:
    line = "a word " * 60
    answer_console().print(line)
    assert capsys.readouterr().out.splitlines() == [line]


def test_what_stands_between_colons_is_no_emoji(capsys) -> None:
    answer_console().print("pip:PACKAGE:FILE")
    notes.print("[dim]pip:package:FILE[/dim]")
    told = capsys.readouterr()
    assert (told.out + told.err).split() == ["pip:PACKAGE:FILE", "pip:package:FILE"]


def test_consoles_are_made_in_one_place() -> None:
    made_in = [file for file in CLI.rglob("*.py") if "Console(" in file.read_text()]
    assert made_in == [CLI / "output.py"]


def test_a_decision_in_a_narrow_terminal_keeps_its_request_id_on_one_line() -> None:
    record = {
        "decided_unix_ms": 0, "request_id": "chatcmpl-" + 32 * "a", "model": "smol",
        "outcome": "finished", "attempts": [{"device_name": "local-1"}], "tier": "edge",
        "candidates": [], "actual": {"ttft_ms": 151.0, "tpot_ms": 8.0},
    }  # fmt: skip
    first, second = _two_lines_each([record]).splitlines()
    assert first.endswith(record["request_id"])
    assert "smol on local-1" in second
    assert "TTFT 151.0 ms (-), TPOT 8.0 ms (-)" in second


@pytest.mark.parametrize(
    ("joules", "text"),
    [(None, "-"), (0.1234, "~0.123 J"), (12.3456, "~12.3 J"), (1674.2, "~1674 J")],
)
def test_joules_are_written_without_an_exponent(joules: float | None, text: str) -> None:
    assert joules_text(joules, estimated=True) == text
