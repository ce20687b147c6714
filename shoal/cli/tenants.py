"""`shoal tenants`: how far whose prompts may travel, and what they may spend in the cloud."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.markup import escape
from rich.table import Table

from shoal.cli.commands import admin_client, reported
from shoal.cli.output import JsonFlag, answer, notes, print_json

tenants_app = typer.Typer(help="Privacy and cloud budgets of tenants.", no_args_is_help=True)

_BUDGETS = ("tokens_per_day", "tokens_per_month", "money_per_day", "money_per_month")


@tenants_app.command("list")
@reported
def list_tenants(as_json: JsonFlag = False) -> None:
    """Show every tenant that has a policy; the requests of others stay in the fleet."""
    reply = admin_client().get("/shoal/v1/tenants")
    if as_json:
        print_json(reply)
    elif reply["tenants"]:
        answer.print(tenant_table(reply["tenants"]))
    else:
        notes.print("[dim]No tenant has a policy: all requests stay in the fleet.[/dim]")


@tenants_app.command("set")
@reported
def set_tenant(  # noqa: PLR0913, PLR0917 - a command's options are its parameters
    tenant: Annotated[str, typer.Argument(help="Its name, as in `shoal keys create`.")],
    privacy: Annotated[str, typer.Option(help="any, local_preferred or local_only.")],
    tokens_per_day: Annotated[int | None, typer.Option(min=0, help="Of the cloud.")] = None,
    tokens_per_month: Annotated[int | None, typer.Option(min=0, help="Of the cloud.")] = None,
    money_per_day: Annotated[float | None, typer.Option(min=0, help="In the currency.")] = None,
    money_per_month: Annotated[float | None, typer.Option(min=0, help="In the currency.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Set a tenant's policy in the place of the one before; limits left out are taken away."""
    limits = (tokens_per_day, tokens_per_month, money_per_day, money_per_month)
    given = {k: v for k, v in zip(_BUDGETS, limits, strict=True) if v is not None}
    path = f"/shoal/v1/tenants/{quote(tenant, safe='')}"
    reply = admin_client().put(path, {"privacy": privacy, **given})
    if as_json:
        print_json(reply)
    else:
        answer.print(tenant_table([reply]))


def tenant_table(tenants: list[dict[str, Any]]) -> Table:
    """One line a tenant: spent of each limit, or spent alone."""
    heads = [name.replace("_", " ") for name in _BUDGETS]
    table = Table("tenant", "privacy", *heads, box=None, header_style="bold")
    for each in tenants:
        used = [_used(each["spent"][name], each["budgets"][name]) for name in _BUDGETS]
        table.add_row(escape(each["tenant"]), each["privacy"], *used)
    return table


def _used(spent: float, limit: float | None) -> str:
    return f"{spent:g}" if limit is None else f"{spent:g} of {limit:g}"
