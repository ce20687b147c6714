"""`shoal status`, `shoal devices …`, `shoal models`: what the fleet is."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from shoal.cli.client import find_endpoint
from shoal.cli.commands import admin_client, reported, user_client
from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.output import JsonFlag, answer, print_json
from shoal.home import default_home

devices_app = typer.Typer(help="The fleet's devices.", no_args_is_help=False)
models_app = typer.Typer(help="The models that the fleet serves.", no_args_is_help=False)

DeviceArgument = Annotated[str, typer.Argument(help="Name or id of the device.")]
STATE_COLOURS = {"READY": "green", "SUSPECT": "yellow", "DRAINING": "yellow", "ENROLLED": "cyan"}


# Certificates tolerate 300 s; a clock that is set by the network is off by less than one.
_SKEW_SHOWN_S = 10.0


@reported
def status(as_json: JsonFlag = False) -> None:
    """Show the gateway, the devices and what they serve."""
    endpoint = find_endpoint(default_home(), admin=True)
    client = admin_client()
    overview = client.get("/shoal/v1/status")
    devices = client.get("/shoal/v1/devices")["devices"]
    if as_json:
        print_json({**overview, "gateway_url": endpoint.url, "devices": devices})
        return
    ready = sum(device["state"] == "READY" for device in devices)
    answer.print(f"[bold]{endpoint.url}[/bold]  {ready} of {len(devices)} devices ready")
    for hub in overview["hubs"]:
        if hub.get("condition"):
            answer.print(f"[red]hub {escape(hub['hub_id'])}: {escape(hub['condition'])}[/red]")
    answer.print(_device_table(devices))


@devices_app.callback(invoke_without_command=True)
@reported
def devices(context: typer.Context, as_json: JsonFlag = False) -> None:
    """The fleet's devices (alone: list them)."""
    if context.invoked_subcommand is None:
        _list_devices(as_json=as_json)


@devices_app.command("list")
@reported
def list_devices(as_json: JsonFlag = False) -> None:
    """List the devices with their state, class, models and load."""
    _list_devices(as_json=as_json)


@devices_app.command("drain")
@reported
def drain(device: DeviceArgument, as_json: JsonFlag = False) -> None:
    """Let a device finish what it runs and give it nothing new."""
    _change(device, "drain", as_json=as_json)


@devices_app.command("remove")
@reported
def remove(device: DeviceArgument, as_json: JsonFlag = False) -> None:
    """Forget a device and refuse its certificate from now on."""
    _change(device, "remove", as_json=as_json)


@models_app.callback(invoke_without_command=True)
@reported
def models(context: typer.Context, as_json: JsonFlag = False) -> None:
    """The models that the fleet serves (alone: list them)."""
    if context.invoked_subcommand is None:
        _list_models(as_json=as_json)


@models_app.command("list")
@reported
def list_models(as_json: JsonFlag = False) -> None:
    """List the models that can be asked for now."""
    _list_models(as_json=as_json)


def _list_devices(*, as_json: bool) -> None:
    found = admin_client().get("/shoal/v1/devices")["devices"]
    if as_json:
        print_json({"devices": found})
    else:
        answer.print(_device_table(found))


def _change(device: str, action: str, *, as_json: bool) -> None:
    client = admin_client()
    known = find_device(client.get("/shoal/v1/devices")["devices"], device)
    reply = client.post(f"/shoal/v1/devices/{known['id']}/{action}")
    if as_json:
        print_json(reply)
    else:
        answer.print(f"{device}: {reply.get('state', action)}")


def find_device(devices: list[dict[str, Any]], device: str) -> dict[str, Any]:
    """The device with this name or id; raises CliError, which tells the names like it."""
    for each in devices:
        if device in (each["id"], each["name"]):
            return each
    near = get_close_matches(device, [str(each["name"]) for each in devices], cutoff=0.5)
    remedy = f"Like it: {', '.join(near)}. " if near else ""
    raise CliError(
        ExitCode.NOT_FOUND,
        f"There is no device {device!r}.",
        remedy + "All are shown by `shoal devices list`.",
    )


def _list_models(*, as_json: bool) -> None:
    listing = user_client().get("/v1/models")
    if as_json:
        print_json({"models": listing["data"]})
        return
    headings = ("model", "parameters", "context", "tier", "devices", "free slots")
    table = Table(*headings, box=None, header_style="bold")
    for model in listing["data"]:
        known = model["shoal"]
        table.add_row(
            model["id"],
            f"{known['num_parameters'] / 1e9:.2f} B",
            str(known["context_tokens"]),
            ", ".join(known["tiers"]),
            str(known["ready_devices"]),
            str(known["free_slots"]),
        )
    answer.print(table)


def _model_text(model: dict[str, Any]) -> str:
    """The model's name, and why the device serves it not."""
    why = model.get("condition") if model["state"] == "READY" else model["state"].lower()
    return escape(model["name"] + (f" ({why})" if why else ""))


def clock_text(device: dict[str, Any]) -> str:
    """What is worth saying of the device's clock; its heartbeats carry the time."""
    skew_s = device.get("clock_skew_ms", 0) / 1000
    if abs(skew_s) < _SKEW_SHOWN_S:
        return ""
    return f", clock {abs(skew_s):.0f} s {'ahead' if skew_s > 0 else 'behind'}"


def _device_table(devices: list[dict[str, Any]]) -> Table:
    headings = ("device", "state", "class", "models", "running", "id")
    table = Table(*headings, box=None, header_style="bold")
    for device in devices:
        state = device["state"]
        kind = device["class"] + (" (emulated)" if device.get("emulated") else "")
        served = ", ".join(_model_text(model) for model in device["models"])
        colour = STATE_COLOURS.get(state, "red")
        running = str(device.get("in_flight", ""))
        table.add_row(
            device["name"],
            f"[{colour}]{state}[/{colour}]{clock_text(device)}",
            *(kind, served, running, device["id"]),
        )
    return table
