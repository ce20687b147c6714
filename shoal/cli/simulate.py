"""`shoal simulate`: what a fleet would do, by the real router over a virtual clock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from shoal.cli.commands import reported
from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.options import finite
from shoal.cli.output import JsonFlag, answer, notes, print_json

# Exit code of the simulator for a wrong file or option.
_BAD_INPUT = 2


@reported
def simulate(  # noqa: PLR0913, PLR0917 - a command's options are its parameters
    fleet: Annotated[
        Path | None, typer.Option(help="TOML or JSON; default: the article's four classes.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Scale the fleet's mix to this many.")
    ] = None,
    workload: Annotated[
        Path | None, typer.Option(help="Recorded requests (JSON lines); default: synthetic.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="round_robin, least_loaded, shoal_latency, shoal_edp; repeatable."),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Synthetic requests.")] = 10_000,
    load: Annotated[
        float, typer.Option(callback=finite, min=0.01, help="Share of the fleet's capacity.")
    ] = 0.7,
    seed: Annotated[int, typer.Option(help="Same seed, same result.")] = 1,
    plot: Annotated[Path | None, typer.Option(help="Write a chart (SVG) there.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Simulate a fleet: latency, SLO attainment and energy under several policies."""
    arguments = ["--requests", str(requests), "--load", str(load), "--seed", str(seed)]
    optional = {"--fleet": fleet, "--devices": devices, "--workload": workload, "--plot": plot}
    for flag, value in optional.items():
        if value is not None:
            arguments += [flag, str(value)]
    for each in policy or []:
        arguments += ["--policy", each]
    document = _run(arguments)
    if as_json:
        print_json(document)
        return
    mix = ", ".join(f"{count} {name}" for name, count in document["fleet"]["kinds"].items())
    answer.print(f"[bold]{document['fleet']['num_devices']} devices[/bold]  {mix}", soft_wrap=True)
    answer.print(_policy_table(document["runs"]))
    answer.print()
    answer.print(_class_table(document["runs"]))
    for note in document["notes"]:
        notes.print(f"[dim]{note}[/dim]", soft_wrap=True)
    if plot is not None:
        notes.print(f"[dim]chart: {plot}[/dim]", soft_wrap=True)


def _run(arguments: list[str]) -> dict[str, Any]:
    """The simulator is a process of its own: the command line imports no orchestrator code."""
    command = [sys.executable, "-m", "orchestrator.simulator", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        if ended.returncode == _BAD_INPUT:
            raise CliError(ExitCode.USAGE, last, "See `shoal simulate --help`.")
        raise CliError(ExitCode.FAILED, f"The simulator failed: {last}")
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


def _policy_table(runs: list[dict[str, Any]]) -> Table:
    headings = ("policy", "SLO", "TTFT s\np50", "\np95", "TPOT ms\np50", "\np95")
    table = Table(*headings, "J/request", "EDP J·s", "failed", box=None, header_style="bold")
    for run in runs:
        ttft, tpot = run["latency"]["ttft_ms"], run["latency"]["tpot_ms"]
        table.add_row(
            run["policy"],
            f"{run['slo_attainment'] * 100:.1f} %",
            *(f"{ttft[each] / 1000:.2f}" for each in ("p50", "p95")),
            *(f"{tpot[each]:.1f}" for each in ("p50", "p95")),
            f"{run['fleet_joules_per_request']:.1f}",
            f"{run['edp_js']:,.0f}",
            str(sum(run["failures"].values())),
        )
    return table


def _class_table(runs: list[dict[str, Any]]) -> Table:
    classes = list(runs[0]["classes"])
    table = Table("share (busy)", *classes, box=None, header_style="bold")
    for run in runs:
        rows = (run["classes"][name] for name in classes)
        cells = [f"{row['share'] * 100:.1f} ({row['utilisation'] * 100:.0f}) %" for row in rows]
        table.add_row(run["policy"], *cells)
    return table
