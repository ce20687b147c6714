"""`shoal keys`: who may ask, and who no longer may."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table

from shoal.cli.addresses import part
from shoal.cli.commands import admin_client, reported
from shoal.cli.output import JsonFlag, answer, notes, print_json

keys_app = typer.Typer(help="API keys.", no_args_is_help=True)

_ID_CHARS = 12


class KeyRole(StrEnum):
    """What a key may do."""

    USER = "user"
    ADMIN = "admin"


@keys_app.command("create")
@reported
def create_key(
    tenant: Annotated[str, typer.Option(help="Whose requests it makes.")] = "default",
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    role: Annotated[KeyRole, typer.Option(help="admin also runs the fleet.")] = KeyRole.USER,
    as_json: JsonFlag = False,
) -> None:
    """Make an API key; it is shown once and stored only as a hash."""
    body = {"tenant": tenant, "name": name or "cli", "role": role.value}
    reply = admin_client().post("/shoal/v1/keys", body)
    if as_json:
        print_json(reply)
        return
    answer.print(reply["key"], markup=False, soft_wrap=True)
    if not reply.get("privacy"):
        notes.print(
            f"[yellow]The tenant {tenant} has no policy: its requests stay in the fleet. "
            f"`shoal tenants set {tenant} --privacy any` lets them use the cloud.[/yellow]"
        )


@keys_app.command("list")
@reported
def list_keys(as_json: JsonFlag = False) -> None:
    """Show all keys by their ids, with those that were revoked."""
    reply = admin_client().get("/shoal/v1/keys")
    if as_json:
        print_json(reply)
    else:
        answer.print(_table(reply["keys"]))


@keys_app.command("revoke")
@reported
def revoke_key(
    key: Annotated[str, typer.Argument(help="Its id from `shoal keys list`, or the key itself.")],
    as_json: JsonFlag = False,
) -> None:
    """Refuse a key from now on; what it already asked is answered."""
    key_id = key
    if key.startswith("sk-"):
        # The key itself stays here: addresses are logged.
        key_id = hashlib.sha256(key.encode()).hexdigest()[:_ID_CHARS]
    path = f"/shoal/v1/keys/{part(key_id, 'key')}/revoke"
    reply = admin_client().post(path, {})
    if as_json:
        print_json(reply)
    else:
        answer.print(_table([reply]))


def _table(keys: list[dict[str, Any]]) -> Table:
    table = Table(box=None, header_style="bold")
    for column in ("id", "tenant", "name", "role", "created", "revoked"):
        table.add_column(column)
    for each in keys:
        times = (_time_text(each["created_unix_ms"]), _time_text(each["revoked_unix_ms"]))
        table.add_row(each["id"], each["tenant"], each["name"], each["role"], *times)
    return table


def _time_text(unix_ms: int | None) -> str:
    if unix_ms is None:
        return "-"
    return datetime.fromtimestamp(unix_ms / 1e3, UTC).strftime("%Y-%m-%d %H:%M UTC")
