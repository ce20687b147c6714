"""How every command ends: its errors become a message, a remedy and an exit code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from shoal.cli.client import GatewayClient, find_endpoint
from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.output import notes, report
from shoal.home import default_home

P = ParamSpec("P")
R = TypeVar("R")


def reported(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command: CliError ends it as docs/exit-codes.md says.

    A parameter named `as_json` decides whether the error is also printed as JSON.
    """

    @functools.wraps(command)
    def run(*args: P.args, **options: P.kwargs) -> R:
        try:
            return command(*args, **options)
        except CliError as error:
            report(error, as_json=bool(options.get("as_json")))
            raise typer.Exit(int(error.code)) from None
        except KeyboardInterrupt:
            notes.print()
            raise typer.Exit(int(ExitCode.INTERRUPTED)) from None

    return run


def admin_client() -> GatewayClient:
    """A client with the admin key of the local fleet, or what SHOAL_* name."""
    return GatewayClient(find_endpoint(default_home(), admin=True))


def user_client() -> GatewayClient:
    """A client with the user's default key, or what SHOAL_* name."""
    return GatewayClient(find_endpoint(default_home(), admin=False))
