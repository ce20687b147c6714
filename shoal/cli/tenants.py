"""`shoal tenants`: whose prompts travel how far, may cost what, come how fast, and want what."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from shoal.cli.addresses import tenant_part
from shoal.cli.client import GatewayClient
from shoal.cli.commands import admin_client, reported
from shoal.cli.options import finite
from shoal.cli.output import JsonFlag, answer, notes, print_json

tenants_app = typer.Typer(help="Privacy and cloud budgets of tenants.", no_args_is_help=True)

_RATES = ("requests_per_minute", "tokens_per_minute", "weight")
_DEFAULTS = ("objective", "hedge_after")
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
    privacy: Annotated[str | None, typer.Option(help="any, local_preferred, local_only.")] = None,
    tokens_per_day: Annotated[int | None, typer.Option(min=0, help="Of the cloud.")] = None,
    tokens_per_month: Annotated[int | None, typer.Option(min=0, help="Of the cloud.")] = None,
    money_per_day: Annotated[
        float | None, typer.Option(callback=finite, min=0, help="In the currency.")
    ] = None,
    money_per_month: Annotated[
        float | None, typer.Option(callback=finite, min=0, help="In the currency.")
    ] = None,
    requests_per_minute: Annotated[float | None, typer.Option(callback=finite, min=0)] = None,
    tokens_per_minute: Annotated[float | None, typer.Option(callback=finite, min=0)] = None,
    weight: Annotated[
        float | None, typer.Option(callback=finite, help="Share while requests wait.")
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="Of requests that do not say: latency, edp, energy.")
    ] = None,
    hedge_after: Annotated[
        float | None,
        typer.Option(callback=finite, min=0, help="The same; in predicted TTFTs, 0: never."),
    ] = None,
    no_limits: Annotated[
        bool, typer.Option("--no-limits", help="Drop all earlier limits and defaults.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Change a tenant's policy; what is not named stays as it is."""
    budgets = (tokens_per_day, tokens_per_month, money_per_day, money_per_month)
    rates = (requests_per_minute, tokens_per_minute, weight)
    names = (*_BUDGETS, *_RATES, *_DEFAULTS)
    given = dict(zip(names, (*budgets, *rates, objective, hedge_after), strict=True))
    path = f"/shoal/v1/tenants/{tenant_part(tenant)}"
    client = admin_client()
    body = changed(_known(client, tenant), {"privacy": privacy, **given}, no_limits=no_limits)
    reply = client.put(path, body)
    if as_json:
        print_json(reply)
    else:
        answer.print(tenant_table([reply]))


def _known(client: GatewayClient, tenant: str) -> dict[str, Any] | None:
    listed = client.get("/shoal/v1/tenants")["tenants"]
    return next((each for each in listed if each["tenant"] == tenant), None)


def changed(
    known: dict[str, Any] | None, given: dict[str, Any], *, no_limits: bool
) -> dict[str, Any]:
    """The whole policy to store: the known one with what was given in its place."""
    body: dict[str, Any] = {}
    if known is not None:
        body["privacy"] = known["privacy"]
        if not no_limits:
            body |= known["budgets"] | known["rates"] | known["defaults"]
    body |= {name: value for name, value in given.items() if value is not None}
    return {name: value for name, value in body.items() if value is not None}


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
