"""The command `shoal`."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal import __version__
from shoal.cli import access, inspect, models
from shoal.cli.agents import agents_app
from shoal.cli.agents_local import agent_status
from shoal.cli.bench import bench
from shoal.cli.bundle import bundle_app
from shoal.cli.cascade import cascade_app
from shoal.cli.chat import chat, tour
from shoal.cli.decisions import decisions
from shoal.cli.device_show import show_device
from shoal.cli.doctor import doctor
from shoal.cli.explain import explain
from shoal.cli.fit import fit
from shoal.cli.keys import keys_app
from shoal.cli.simulate import simulate
from shoal.cli.tenants import tenants_app
from shoal.cli.up import down, up

app = typer.Typer(
    help="Many small language models working as one fleet.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shoal {__version__}")
        raise typer.Exit()


@app.callback()
def shoal(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Many small language models working as one fleet."""


for _command in (up, down, inspect.status, chat, explain, decisions, bench, simulate, doctor, tour):
    app.command()(_command)
inspect.models_app.command()(fit)
for _of_models in (
    models.add, models.catalogue, models.remove, models.retry, models.deploy, models.undeploy,
    models.placements,
):  # fmt: skip
    inspect.models_app.command()(_of_models)
inspect.devices_app.command()(models.label)
inspect.devices_app.command("show")(show_device)
access.agent_app.command("status")(agent_status)
app.add_typer(inspect.devices_app, name="devices")
app.add_typer(inspect.models_app, name="models")
app.add_typer(keys_app, name="keys")
app.add_typer(tenants_app, name="tenants")
app.add_typer(cascade_app, name="cascade")
app.add_typer(access.token_app, name="token")
app.add_typer(access.agent_app, name="agent")
app.add_typer(agents_app, name="agents")
app.add_typer(bundle_app, name="bundle")


def main() -> None:
    """Entry point of the console script."""
    app()
