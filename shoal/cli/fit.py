"""`shoal models fit`: how many sequences of what length fit into this device's memory."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Annotated, Any

import typer
from rich.markup import escape

from shoal.cli.commands import reported
from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.output import JsonFlag, answer, print_json
from shoal.home import default_home
from shoal.kv_budget import KvElement

# Exit code of the calculation for a model that cannot be judged.
_BAD_INPUT = 2


@reported
def fit(  # noqa: PLR0913, PLR0917 - a command's options are its parameters
    model: Annotated[str, typer.Argument(help="GGUF file, or name of a model that is here.")],
    slots: Annotated[int, typer.Option(min=1, help="Sequences that run at once.")] = 8,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens a sequence; default: as trained.")
    ] = None,
    memory_mib: Annotated[
        int | None, typer.Option(min=1, help="Free memory; default: this device's.")
    ] = None,
    kv_type: Annotated[KvElement, typer.Option(help="Elements of the cache.")] = KvElement.F16,
    as_json: JsonFlag = False,
) -> None:
    """Show how the KV cache's memory is calculated for a model on this device.

    Exit code 1: it does not fit.
    """
    arguments = [model, "--slots", str(slots), "--kv-type", kv_type]
    arguments += ["--models-dir", str(default_home().models_dir)]
    for flag, value in (("--context", context), ("--memory-mib", memory_mib)):
        if value is not None:
            arguments += [flag, str(value)]
    document = _run(arguments)
    if as_json:
        print_json(document)
    else:
        answer.print(f"[bold]{escape(document['file'])}[/bold]")
        for line in document["lines"]:
            answer.print(line, highlight=False, markup=False, soft_wrap=True)
    if not document["fits"]:
        raise typer.Exit(int(ExitCode.FAILED))


def _run(arguments: list[str]) -> dict[str, Any]:
    """A process of its own: the command line imports no agent code."""
    command = [sys.executable, "-m", "agent.rpc.fit", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        if ended.returncode == _BAD_INPUT:
            raise CliError(ExitCode.USAGE, last, "Pass a GGUF file.")
        raise CliError(ExitCode.FAILED, f"The calculation failed: {last}")
    document: dict[str, Any] = json.loads(ended.stdout)
    return document
