"""`shoal cascade`: when the edge's answers stand, and setting that from a tenant's own traffic."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from shoal.cli.addresses import tenant_part
from shoal.cli.commands import admin_client, reported
from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.options import finite
from shoal.cli.output import JsonFlag, answer, print_json

cascade_app = typer.Typer(
    help="Cascades: the edge answers first, by its confidence somebody else after it.",
    no_args_is_help=True,
)

TenantOption = Annotated[str, typer.Option(help="Whose traffic and threshold.")]


@cascade_app.command("show")
@reported
def show(tenant: TenantOption = "default", as_json: JsonFlag = False) -> None:
    """List the cascades with a tenant's thresholds and what is known of its answers."""
    path = f"/shoal/v1/tenants/{tenant_part(tenant)}/cascades"
    reply = admin_client().get(path)
    if as_json:
        print_json(reply)
        return
    heads = ("cascade", "edge", "then", "threshold", "calibrated to", "samples", "went on")
    table = Table(*heads, box=None, header_style="bold")
    for each in reply["cascades"]:
        found = each["calibration"]
        share = each["escalated_share"]
        table.add_row(
            escape(each["name"]),
            escape(each["edge"] or "(chosen)"),
            escape(", ".join(each["escalate_to"]) or "(chosen)"),
            f"{each['threshold']:.4f}",
            f"{found['target_share']:.1%}" if found else "-",
            str(each["samples"]),
            "-" if share is None else f"{share:.1%}",
        )
    answer.print(table)


@cascade_app.command("calibrate")
@reported
def calibrate(  # noqa: PLR0913, PLR0917 - a command's options are its parameters
    share: Annotated[
        float | None,
        typer.Option(callback=finite, min=0, max=1, help="Of requests that may go on."),
    ] = None,
    money_per_day: Annotated[
        float | None, typer.Option(callback=finite, min=0, help="In the currency.")
    ] = None,
    tokens_per_day: Annotated[int | None, typer.Option(min=0, help="Of the cloud.")] = None,
    policy: Annotated[str, typer.Option(help="The cascade.")] = "auto",
    tenant: TenantOption = "default",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show, change nothing.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Set a tenant's threshold by its own traffic, without labels, to a share or a budget."""
    targets = {
        "share": share, "money_per_day": money_per_day, "tokens_per_day": tokens_per_day,
    }  # fmt: skip
    given: dict[str, Any] = {name: value for name, value in targets.items() if value is not None}
    if len(given) != 1:
        raise CliError(
            ExitCode.REFUSED,
            "One target is needed.",
            "Give one of --share, --money-per-day, --tokens-per-day.",
        )
    path = f"/shoal/v1/tenants/{tenant_part(tenant)}/cascades/calibrate"
    reply = admin_client().post(path, {"policy": policy, "dry_run": dry_run, **given})
    if as_json:
        print_json(reply)
        return
    for line in calibration_lines(reply, dry_run=dry_run):
        answer.print(line, markup=False)


def calibration_lines(reply: dict[str, Any], *, dry_run: bool) -> list[str]:
    """What was found, in words."""
    state = "would be" if dry_run else "is now"
    return [
        f"threshold  {reply['threshold']:.4f} {state} used by {reply['policy']}"
        f" for {reply['tenant']}",
        f"target     {reply['target_share']:.1%} of requests go on",
        f"expected   {reply['reached_share']:.1%} on the half that it was not made from"
        f" ({reply['reached_low']:.1%} to {reply['reached_high']:.1%} by chance)",
        f"samples    {reply['num_samples']}, answers of up to {reply['expected_tokens']} tokens",
    ]
