"""`shoal agents …`: the versions of the fleet's agents, changed in batches behind a gate."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from shoal.cli.agents_rollout import Rollout, Terms, batch_size, select
from shoal.cli.commands import admin_client, reported, user_client
from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.output import JsonFlag, answer, notes, print_json

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
        str, typer.Option(help="all, or name=GLOB, class=C, version=V; commas: all of them.")
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
    as_json: JsonFlag = False,
) -> None:
    """Give devices another version: drained first, kept once each serves, else taken back.

    Batch after batch; it stops when more devices than allowed went back.
    """
    client = admin_client()
    release = _release(client.get("/shoal/v1/releases")["releases"], version)
    devices = select(client.get("/shoal/v1/devices")["devices"], selector)
    if not devices:
        raise CliError(ExitCode.NOT_FOUND, f"No device is selected by {selector!r}.")
    rollout = Rollout(
        client, user_client(), Terms(release, ready_within, drain_within), time.monotonic
    )
    size = batch_size(batch, len(devices))
    results: list[dict[str, Any]] = []
    for first in range(0, len(devices), size):
        for result in rollout.run(devices[first : first + size]):
            results.append(result)
            text = escape(f"{result['device']}: {result['outcome']} {result['why']}".rstrip())
            notes.print(text)
        failed = sum(each["outcome"] in ("refused", "rolled_back", "lost") for each in results)
        if failed > max_failures:
            break
    left = len(devices) - len(results)
    if as_json:
        print_json({"release": release["release"], "results": results, "untouched": left})
    if failed > max_failures:
        raise CliError(
            ExitCode.FAILED,
            f"{failed} devices do not run {release['release']}; {left} were not touched.",
            "See the reasons above, and `shoal agents versions`.",
        )


def _release(releases: list[dict[str, Any]], version: str) -> dict[str, Any]:
    found = [each for each in releases if version in ("", each["version"])]
    if not found:
        known = ", ".join(each["version"] for each in releases) or "none"
        raise CliError(
            ExitCode.NOT_FOUND,
            f"The fleet has no version {version!r} for devices; it has: {known}.",
            "Put its wheel into the folder depot/releases of the orchestrator's SHOAL_HOME.",
        )
    return found[0]


def _remark(installation: dict[str, Any]) -> str:
    if not installation["release"]:
        return "upgraded with what started it"
    if installation["trial"]:
        return f"{installation['trial']} on trial"
    if installation["failed_release"]:
        return f"went back from {installation['failed_release']}: {installation['failure']}"
    return ""
