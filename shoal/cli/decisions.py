"""`shoal decisions`: where the newest requests went, one line each."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from shoal.cli.commands import admin_client, reported
from shoal.cli.output import JsonFlag, answer, ms_text, print_json

# As many as the gateway lists at once.
MAX_LIMIT = 1_000
# Columns of a terminal from which on one line holds a request.
_TABLE_WIDTH = 130


@reported
def decisions(
    device: Annotated[str, typer.Option(help="Only requests placed there (name or id).")] = "",
    limit: Annotated[int, typer.Option(min=1, max=MAX_LIMIT, help="At most this many.")] = 20,
    as_json: JsonFlag = False,
) -> None:
    """List the newest routing decisions, predicted beside actual; details: `shoal explain`."""
    filters: dict[str, str | int] = {"device": device} if device else {}
    listing = admin_client().get("/shoal/v1/decisions", limit=limit, **filters)
    if as_json:
        print_json(listing)
        return
    if not listing["decisions"]:
        answer.print("No decisions are recorded" + (f" of {escape(device)}." if device else "."))
        return
    records = listing["decisions"]
    answer.print(_table(records) if answer.width >= _TABLE_WIDTH else _two_lines_each(records))


def _table(records: list[dict[str, Any]]) -> Table:
    table = Table("time", box=None, header_style="bold")
    # Whole, so that it can be copied to `shoal explain`.
    table.add_column("request", no_wrap=True)
    for heading in ("model", "device", "outcome", "TTFT (predicted)", "TPOT (predicted)"):
        table.add_column(heading)
    for record in records:
        table.add_row(*_cells(record))
    return table


def _two_lines_each(records: list[dict[str, Any]]) -> str:
    """For narrow terminals: what is to be copied on a line, what is to be read below it."""
    return "\n".join(
        f"{time}  {request}\n    {model} on {device}: {outcome}; TTFT {ttft}, TPOT {tpot}"
        for time, request, model, device, outcome, ttft, tpot in map(_cells, records)
    )


def _cells(record: dict[str, Any]) -> tuple[str, ...]:
    predicted, actual = predicted_of(record), record["actual"] or {}
    decided = datetime.fromtimestamp(record["decided_unix_ms"] / 1000)
    colour = "green" if record["outcome"] == "finished" else "yellow"
    return (
        f"{decided:%H:%M:%S}",
        escape(record["request_id"]),
        escape(record["model"]),
        escape(placed_on(record)),
        f"[{colour}]{escape(record['outcome'])}[/{colour}]",
        *(
            f"{ms_text(actual.get(key))} ({ms_text(predicted.get(key))})"
            for key in ("ttft_ms", "tpot_ms")
        ),
    )


def placed_on(record: dict[str, Any]) -> str:
    """Name of the device or endpoint that answered, else had it last; the tier when none had it."""
    of_cloud = record["tier"] == "cloud"
    served = [
        each
        for each in record["attempts"]
        if not each.get("failed") and each.get("device_id", "").startswith("cloud:") == of_cloud
    ]
    if record["attempts"]:
        return str((served or record["attempts"])[-1]["device_name"])
    return str(record["tier"]) if record["tier"] == "cloud" else "-"


def predicted_of(record: dict[str, Any]) -> dict[str, Any]:
    """Prediction for the chosen candidate; empty when there was none."""
    chosen = (each for each in record["candidates"] if not each["rejected"])
    return next((each["prediction"] or {} for each in chosen), {})
