"""`shoal token create`, `shoal agent run`: devices that join."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from shoal.cli.agent_homes import check_device_name, home_of_agent
from shoal.cli.commands import admin_client, reported
from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.options import finite
from shoal.cli.output import JsonFlag, answer, notes, print_json
from shoal.home import default_home, environment_with
from shoal.kv_sharing import SharePolicy
from shoal.named_files import named_file

token_app = typer.Typer(help="Join tokens for devices.", no_args_is_help=True)
agent_app = typer.Typer(help="This machine as a device.", no_args_is_help=True)

DEFAULT_TTL_S = 3600


class KvTypeOption(StrEnum):
    """`auto`: as calibrated, else f16; the others are shoal.kv_budget.KvElement's."""

    AUTO = "auto"
    F16 = "f16"
    Q8_0 = "q8_0"


@token_app.command("create")
@reported
def create_token(
    ttl: Annotated[int, typer.Option(min=1, help="Seconds until it expires.")] = DEFAULT_TTL_S,
    as_json: JsonFlag = False,
) -> None:
    """Make a single-use join token for one device, and print the line that installs it."""
    reply = admin_client().post("/shoal/v1/tokens", {"ttl_s": ttl})
    if as_json:
        print_json(reply)
        return
    url, token = reply["gateway_url"], reply["token"]
    if "install" not in reply:
        answer.print(token, markup=False, soft_wrap=True)
        notes.print("[dim]This gateway serves no installer. On the device:[/dim]")
        notes.print(f"shoal agent run --join {url} --token {token}", markup=False, soft_wrap=True)
        return
    notes.print(f"[dim]For one device, within {ttl} s. On the device, as root or not:[/dim]")
    answer.print(reply["install"], markup=False, soft_wrap=True)
    notes.print(
        "[dim]On a network that you do not trust, which checks the script before it runs:[/dim]"
    )
    notes.print(reply["install_verified"], markup=False, soft_wrap=True, highlight=False)
    if _names_this_machine(url):
        notes.print(
            "[yellow]This fleet listens on this machine only: the line works here and nowhere "
            "else.[/yellow]"
        )


def _names_this_machine(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


@agent_app.command("calibrate")
@reported
def calibrate_agent(  # noqa: PLR0913, PLR0917 - a command's options are its parameters
    model: Annotated[str, typer.Argument(help="GGUF file or name.")] = "smollm2-135m-instruct",
    name: Annotated[
        str | None, typer.Option(help="The agent's; default: the only one here.")
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="Its state directory; default: found by its name.")
    ] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="That the agent is to have.")] = None,
    context: Annotated[
        int | None, typer.Option(min=256, help="Tokens that each is to have.")
    ] = None,
    limit_s: Annotated[
        float, typer.Option(callback=finite, min=1, help="For all candidates together.")
    ] = 30.0,
    again: Annotated[bool, typer.Option(help="Measure again what is known.")] = False,
) -> None:
    """Measure which variant, threads, slots and KV type suit this device, for its next start."""
    directory = home_of_agent(name) if state_dir is None else state_dir
    if not os.path.lexists(directory):
        raise CliError(
            ExitCode.NOT_FOUND,
            f"--state-dir {str(directory)[:200]} does not exist.",
            "Pass that of an agent; `shoal agent status` lists those that it knows.",
        )
    command = [sys.executable, "-m", "agent.calibration", "--home", str(directory.absolute())]
    command += ["--model", str(named_file(model) or model)]
    command += ["--limit-s", str(limit_s), *(["--again"] if again else [])]
    for flag, wanted in (("--slots", slots), ("--context", context)):
        command += [] if wanted is None else [flag, str(wanted)]
    os.execve(sys.executable, command, environment_with({}))  # noqa: S606 - no shell is wanted


@agent_app.command("run")
@reported
def run_agent(  # noqa: PLR0913, PLR0917 - a command's options are its parameters
    join: Annotated[str, typer.Option(help="URL of the fleet's gateway.")],
    token: Annotated[str | None, typer.Option(help="Join token; needed once.")] = None,
    name: Annotated[str | None, typer.Option(help="Default: the host's name.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="GGUF file or name; repeatable.")] = None,
    companion: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|URL#MODEL", help="A server here that serves a model; repeatable."
        ),
    ] = None,
    device_class: Annotated[str | None, typer.Option("--class", help="Default: detected.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where its identity is kept.")] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Sequences at once.")] = None,
    context: Annotated[int | None, typer.Option(min=256, help="Tokens a sequence.")] = None,
    tdp_w: Annotated[
        float | None,
        typer.Option(callback=finite, min=0.1, help="Power under load, W, if there is no meter."),
    ] = None,
    kv_type: Annotated[
        KvTypeOption,
        typer.Option(help="Elements of the KV cache; auto: as calibrated, else f16."),
    ] = KvTypeOption.AUTO,
    kv_share: Annotated[
        SharePolicy | None,
        typer.Option(help="KV blocks that leave the device; default: the fleet's."),
    ] = None,
    kv_write_limit: Annotated[
        float | None,
        typer.Option(
            callback=finite, min=0, metavar="MB/S", help="For KV blocks that leave it; 0: no limit."
        ),
    ] = None,
) -> None:
    """Turn this process into an agent that serves models for a fleet."""
    device = check_device_name(name or os.uname().nodename)
    directory = state_dir or default_home().agent_dir(device)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(
            ExitCode.USAGE,
            f"The state directory cannot be made: {error}",
            "Pass --state-dir DIR that this account may write.",
        ) from None
    command = [sys.executable, "-m", "agent.app", "--home", str(directory.absolute())]
    command += ["--join", join, "--name", device]
    for flag, given in (
        ("--model", model or ([] if companion else ["smollm2-135m-instruct"])),
        ("--companion", companion or []),
    ):
        for each in given:
            command += [flag, str(named_file(each) or each)]
    optional = {"--class": device_class, "--slots": slots, "--context": context, "--tdp-w": tdp_w}
    optional |= {"--kv-type": kv_type}
    optional |= {"--kv-share": kv_share, "--kv-write-limit": kv_write_limit}
    for flag, value in optional.items():
        if value is not None:
            command += [flag, str(value)]
    # The agent replaces this process: a device need not carry the command line's weight.
    environment = environment_with({"SHOAL_TOKEN": token} if token else {})
    os.execve(sys.executable, command, environment)  # noqa: S606 - no shell is wanted
