"""`shoal agents …`: the versions of the fleet's agents, changed in batches behind a gate."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from shoal.cli.client import GatewayClient
from shoal.cli.commands import admin_client, reported
from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.output import JsonFlag, answer, notes, print_json

_POLL_S = 0.5
_OPEN = ("waiting", "due", "ordered")

agents_app = typer.Typer(help="The agents' versions.", no_args_is_help=True)


@agents_app.command("versions")
@reported
def versions(as_json: JsonFlag = False) -> None:
    """Show what each agent runs, and what there is to upgrade to."""
    client = admin_client()
    devices = client.get("/shoal/v1/devices")["devices"]
    releases = client.get("/shoal/v1/releases")["releases"]
    if as_json:
        rows = [
            {key: device[key] for key in ("name", "state", "agent_version", "protocol")}
            | {"installation": device["installation"]}
            for device in devices
        ]
        print_json({"agents": rows, "releases": releases})
        return
    table = Table("device", "state", "version", "protocol", "", box=None, header_style="bold")
    for device in devices:
        table.add_row(
            device["name"],
            device["state"],
            device["agent_version"],
            str(device["protocol"]),
            escape(_remark(device["installation"])),
        )
    answer.print(table)
    answer.print("to upgrade to: " + ", ".join(each["release"] for each in releases))


@agents_app.command("upgrade")
@reported
def upgrade(  # noqa: PLR0913, PLR0917 - a command's options are its parameters
    selector: Annotated[
        str,
        typer.Option(help="all, or name=GLOB, class=C, version=V, LABEL=V; commas: all of them."),
    ] = "all",
    batch: Annotated[str, typer.Option(help="Devices at once: a number or a share.")] = "10%",
    version: Annotated[str, typer.Option(help="Default: the orchestrator's own.")] = "",
    ready_within: Annotated[
        int, typer.Option(min=10, max=3600, help="Seconds; then the device goes back.")
    ] = 300,
    drain_within: Annotated[
        int, typer.Option(min=1, max=3600, help="Seconds for what still runs.")
    ] = 60,
    max_failures: Annotated[int, typer.Option(min=0, help="Stop after more than these.")] = 0,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the end.")] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Only show the rollout that runs, or the last.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Open no further batch of the one that runs.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Give devices another version: drained first, kept once each serves, else taken back.

    Batch after batch; it stops when more devices than allowed went back. The hub carries it
    on: ending this command, or the hub, does not end the rollout.
    """
    client = admin_client()
    if status or cancel:
        path = "/shoal/v1/rollouts/last"
        rollout = client.post(f"{path}/cancel") if cancel else client.get(path)
        _show(rollout, as_json=as_json)
        return
    rollout = client.post(
        "/shoal/v1/rollouts",
        {
            "selector": selector, "batch": batch, "version": version,
            "ready_within_s": ready_within, "drain_within_s": drain_within,
            "max_failures": max_failures,
        },
    )  # fmt: skip
    if not detach:
        rollout = _follow(client, rollout)
    _show(rollout, as_json=as_json)
    if rollout["outcome"] not in {"running", "done"}:
        raise CliError(
            ExitCode.FAILED,
            f"The rollout of {rollout['release']} is {rollout['outcome']}.",
            "See the reasons above, and `shoal agents versions`.",
        )


def _follow(client: GatewayClient, rollout: dict[str, Any]) -> dict[str, Any]:
    """Tell of each device as it ends, until the rollout ended; Ctrl-C leaves it going."""
    told: set[str] = set()
    while True:
        for each in rollout["devices"]:
            if each["phase"] not in _OPEN and each["device"] not in told:
                told.add(each["device"])
                notes.print(escape(f"{each['device']}: {each['phase']} {each['why']}".rstrip()))
        if rollout["outcome"] != "running":
            return rollout
        time.sleep(_POLL_S)
        try:
            latest = client.get("/shoal/v1/rollouts/last")
        except CliError as error:
            if error.code is not ExitCode.UNREACHABLE:
                raise
            continue  # a gateway or hub that restarts; the rollout goes on
        if latest["id"] != rollout["id"]:
            raise CliError(ExitCode.FAILED, "Another rollout took this one's place.")
        rollout = latest


def _show(rollout: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(rollout)
        return
    ending = ", cancelled" if rollout["outcome"] == "running" and rollout["cancelled"] else ""
    answer.print(f"{rollout['release']}: {rollout['outcome']}{ending}")
    table = Table("device", "phase", "", box=None, header_style="bold")
    for each in rollout["devices"]:
        table.add_row(each["device"], each["phase"], escape(each["why"]))
    answer.print(table)


def _remark(installation: dict[str, Any]) -> str:
    if not installation["release"]:
        return "upgraded with what started it"
    if installation["trial"]:
        return f"{installation['trial']} on trial"
    if installation["failed_release"]:
        return f"went back from {installation['failed_release']}: {installation['failure']}"
    return ""
