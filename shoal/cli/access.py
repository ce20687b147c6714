"""`shoal keys create`, `shoal token create`, `shoal agent run`: who may join and ask."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.commands import admin_client, reported
from shoal.cli.output import JsonFlag, answer, notes, print_json
from shoal.home import default_home, environment_with

keys_app = typer.Typer(help="API keys.", no_args_is_help=True)
token_app = typer.Typer(help="Join tokens for devices.", no_args_is_help=True)
agent_app = typer.Typer(help="This machine as a device.", no_args_is_help=True)

DEFAULT_TTL_S = 3600


@keys_app.command("create")
@reported
def create_key(
    tenant: Annotated[str, typer.Option(help="Whose requests it makes.")] = "default",
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Make an API key; it is shown once and stored only as a hash."""
    reply = admin_client().post("/shoal/v1/keys", {"tenant": tenant, "name": name or "cli"})
    if as_json:
        print_json(reply)
    else:
        answer.print(reply["key"], markup=False, soft_wrap=True)


@token_app.command("create")
@reported
def create_token(
    ttl: Annotated[int, typer.Option(min=1, help="Seconds until it expires.")] = DEFAULT_TTL_S,
    as_json: JsonFlag = False,
) -> None:
    """Make a single-use join token for one device."""
    reply = admin_client().post("/shoal/v1/tokens", {"ttl_s": ttl})
    if as_json:
        print_json(reply)
        return
    answer.print(reply["token"], markup=False, soft_wrap=True)
    notes.print("[dim]On the device: shoal agent run --join URL --token TOKEN[/dim]")


@agent_app.command("run")
@reported
def run_agent(  # noqa: PLR0913, PLR0917 - a command's options are its parameters
    join: Annotated[str, typer.Option(help="URL of the fleet's gateway.")],
    token: Annotated[str | None, typer.Option(help="Join token; needed once.")] = None,
    name: Annotated[str | None, typer.Option(help="Default: the host's name.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="GGUF file or name; repeatable.")] = None,
    device_class: Annotated[str | None, typer.Option("--class", help="Default: detected.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where its identity is kept.")] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Sequences at once.")] = None,
    context: Annotated[int | None, typer.Option(min=256, help="Tokens a sequence.")] = None,
) -> None:
    """Turn this process into an agent that serves models for a fleet."""
    device = name or os.uname().nodename
    directory = state_dir or default_home().agent_dir(device)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = [sys.executable, "-m", "agent.app", "--home", str(directory.absolute())]
    command += ["--join", join, "--name", device]
    for each in model or ["smollm2-135m-instruct"]:
        command += ["--model", str(Path(each).absolute()) if Path(each).is_file() else each]
    optional = {"--class": device_class, "--slots": slots, "--context": context}
    for flag, value in optional.items():
        if value is not None:
            command += [flag, str(value)]
    # The agent replaces this process: a device need not carry the command line's weight.
    environment = environment_with({"SHOAL_TOKEN": token} if token else {})
    os.execve(sys.executable, command, environment)  # noqa: S606 - no shell is wanted
