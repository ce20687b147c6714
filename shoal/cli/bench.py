"""`shoal bench`: the article's table for the fleet's own devices."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from shoal.cli.bench_figures import Row, Run, Target, find_targets, run_of, summarise
from shoal.cli.client import GatewayClient
from shoal.cli.commands import admin_client, reported, user_client
from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.output import JsonFlag, answer, notes, print_json

# Token ids that every vocabulary has, past the special ones at its start.
_TOKEN_IDS = range(512, 8000)
_LONGEST = 131_072


@reported
def bench(  # noqa: PLR0913, PLR0917 - a command's options are its parameters
    device: Annotated[list[str] | None, typer.Option(help="Only this one; repeatable.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Only this one; repeatable.")] = None,
    length: Annotated[
        int, typer.Option(min=64, max=_LONGEST, help="Sequence length at the end, in tokens.")
    ] = 1024,
    tokens: Annotated[int, typer.Option(min=8, max=4096, help="Of it generated.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Requests; medians count.")] = 3,
    as_json: JsonFlag = False,
) -> None:
    """Measure each model on each device: tokens/s, tokens/J, EDP, bandwidth utilisation."""
    if tokens >= length:
        raise CliError(
            ExitCode.USAGE, "--tokens must be less than --length.", "Try --tokens 64 --length 1024."
        )
    listed = admin_client().get("/shoal/v1/devices")["devices"]
    targets, skipped = find_targets(listed, device or (), model or ())
    if not targets:
        raise CliError(
            ExitCode.NOT_FOUND,
            "Nothing to measure: " + ("; ".join(skipped) or "no such device or model") + ".",
            "See `shoal status`.",
        )
    busy = [each["name"] for each in listed if each.get("in_flight")]
    client = user_client()
    rows: list[Row] = []
    for target in targets:
        if not as_json:
            notes.print(f"[dim]{target.device}: {target.model} …[/dim]", soft_wrap=True)
        reached = min(length, target.context_tokens)
        if reached <= tokens:
            skipped.append(f"{target.device} {target.model}: its context is too short")
            continue
        runs = [_run(client, target, reached, tokens) for _ in range(repeats)]
        rows.append(summarise(target, reached, runs))
    if as_json:
        document = {"tokens": tokens, "repeats": repeats, "busy": busy, "skipped": skipped}
        print_json({**document, "rows": [asdict(row) for row in rows]})
        return
    answer.print(_table(rows))
    _explain(rows, skipped, busy)


def _run(client: GatewayClient, target: Target, length: int, tokens: int) -> Run:
    """One request alone, with a prompt that no cache knows."""
    draw = random.Random()  # noqa: S311 - a prompt is no secret
    body: dict[str, Any] = {
        "model": target.model,
        "prompt": draw.choices(_TOKEN_IDS, k=length - tokens),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "shoal": {"device": target.device_id, "privacy": "local_only"},
    }
    usage: dict[str, Any] = {}
    extension: dict[str, Any] = {}
    for event in client.stream("/v1/completions", body):
        usage = event.get("usage") or usage
        extension = event.get("shoal") or extension
    if not extension or usage.get("completion_tokens", 0) < 2:
        raise CliError(ExitCode.FAILED, f"{target.device} did not answer to the end.")
    return run_of(usage, extension)


def _table(rows: list[Row]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("device", overflow="fold", min_width=8)
    table.add_column("model, length", overflow="fold", min_width=14)
    headings = ("prompt\ntokens/s", "tokens/s", "ms/token", "tokens/J", "EDP/token\nmJ·s", "MBU")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        about = "~" if row.joules_estimated else ""
        edp = row.edp_js_per_token
        table.add_row(
            f"{row.device}\n{row.device_class}{' (emulated)' if row.emulated else ''}",
            f"{row.model}\n{row.quantisation} {row.length}",
            _figure(row.prompt_tokens_per_s, "{:.0f}"),
            f"{row.tokens_per_s:.1f}",
            f"{row.ms_per_token:.1f}",
            _figure(row.tokens_per_joule, about + "{:.3g}"),
            _figure(None if edp is None else edp * 1000, about + "{:.3g}"),
            _figure(row.bandwidth_utilisation, "{:.0%}"),
        )
    return table


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _explain(rows: list[Row], skipped: list[str], busy: list[str]) -> None:
    remarks = []
    if any(row.joules_estimated for row in rows):
        remarks.append("~ estimated from class or power limit, not measured: docs/energy.md")
    if any(row.emulated for row in rows):
        remarks.append("emulated: declared to be of another class than the hardware")
    if busy:
        remarks.append(f"had other requests when this began: {', '.join(busy)}")
    remarks += [f"not measured: {each}" for each in skipped]
    for remark in remarks:
        notes.print(f"[dim]{remark}[/dim]", soft_wrap=True)
