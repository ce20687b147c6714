"""What commands print: people get tables, `--json` gets one JSON document on stdout.

Progress and errors go to stderr, so that stdout is always only the answer.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from shoal.cli.exit_codes import CliError

# What reads from a pipe wants whole lines, not a terminal's 80 columns.
_PIPED_WIDTH = 1_000


def answer_console() -> Console:
    """Where answers go: as wide as the terminal; whole lines in a pipe."""
    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    return Console(highlight=False, emoji=False, width=width)


# No emoji: `pip:PACKAGE:FILE` is what was typed, not a parcel.
answer = answer_console()
notes = Console(stderr=True, highlight=False, emoji=False)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def print_json(document: Any) -> None:
    """Write `document` to stdout as indented JSON."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def report(error: CliError, *, as_json: bool) -> None:
    """Say what is wrong and the remedy, on stderr; with `as_json` also on stdout."""
    if as_json:
        body = {"message": error.message, "remedy": error.remedy, "exit_code": int(error.code)}
        print_json({"error": body})
    notes.print(f"[red]error:[/red] {escape(error.message)}", soft_wrap=True)
    if error.remedy:
        notes.print(f"[yellow]remedy:[/yellow] {escape(error.remedy)}", soft_wrap=True)


def bytes_text(num_bytes: float) -> str:
    """A size as people read it: `92.0 MB` (decimal units, as disks and models are sold)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num_bytes) < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


def joules_text(joules: float | None, *, estimated: bool) -> str:
    """Energy as people read it: `1.23 J`, `~1.23 J` for an estimate, or `-` when unknown."""
    if joules is None:
        return "-"
    figure = f"{joules:.3g}" if joules < 1000 else f"{joules:.0f}"
    return f"{'~' if estimated else ''}{figure} J"


def ms_text(ms: float | None) -> str:
    """A duration as people read it: `12.3 ms`, `4.56 s`, or `-` when unknown."""
    if ms is None:
        return "-"
    return f"{ms:.1f} ms" if ms < 1000 else f"{ms / 1000:.2f} s"
