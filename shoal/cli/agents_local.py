"""`shoal agent status`: this machine's agents and their local API."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from shoal.cli.agent_homes import IDENTITY, joined_homes
from shoal.cli.commands import reported
from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.output import JsonFlag, answer, print_json

_TIMEOUT_S = 3.0


@reported
def agent_status(
    state_dir: Annotated[
        Path | None, typer.Option(help="The agent's state directory; default: all known here.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show this machine's agents: who they are, and the address and key of their local API."""
    homes = [state_dir] if state_dir else joined_homes()
    agents = [_describe(home) for home in homes if os.path.isfile(home / IDENTITY)]
    if not agents:
        raise CliError(
            ExitCode.NOT_FOUND,
            "No agent has joined a fleet from here, as far as this account can see.",
            "Pass --state-dir DIR, or run it as the agent's own account.",
        )
    if as_json:
        print_json({"agents": agents})
        return
    for agent in agents:
        answer.print(f"[bold]{agent['name']}[/bold]  {agent['device_id']}  {agent['state_dir']}")
        for model, row in agent["calibrated"].items():
            answer.print(f"  {_calibrated_text(model, row)}", markup=False, soft_wrap=True)
        local = agent["local_api"]
        if local is None:
            answer.print("  local API: off, or the agent does not run")
            continue
        answer.print(f"  local API: {local['url']}  {'answers' if local['answers'] else 'silent'}")
        answer.print(f"  key: {local['key'] or 'not readable'}", markup=False, soft_wrap=True)


def _calibrated_text(model: str, row: dict[str, Any]) -> str:
    if "failure" in row:
        return f"not calibrated: {model}: {row['failure']}"
    threads = row["threads"] or "all"
    chosen = f"{Path(row['file']).name}, {threads} threads, {row['slots']} slots"
    return f"calibrated: {model}: {chosen}; q8_0 KV: {_q8_0_text(row.get('kv') or {})}"


def _q8_0_text(kv: dict[str, Any]) -> str:
    """What a calibration found of it; the agent chooses by that and by the memory at its start."""
    if kv.get("failure") or not kv.get("q8_0_s"):
        return str(kv.get("failure") or "not tried")
    exact = "" if kv["invariant"] else "not used, a text would depend on how the work is cut; "
    return f"{exact}{kv['q8_0_s']:.2f} s for a usual request, f16 {kv['f16_s']:.2f} s"


def _describe(home: Path) -> dict[str, Any]:
    identity = _read_json(home / IDENTITY)
    address = _read_json(home / "local-api.json")
    local = None
    if "url" in address:
        url = str(address["url"])
        key_file = home / "local-api.key"
        key = key_file.read_text(encoding="ascii").strip() if key_file.is_file() else ""
        local = {"url": url, "answers": _answers(url), "key": key, "key_file": str(key_file)}
    return {
        "name": identity.get("name", ""),
        "device_id": identity.get("device_id", ""),
        "gateway_url": identity.get("gateway_url", ""),
        "state_dir": str(home),
        "local_api": local,
        "calibrated": _read_json(home / "calibration.json"),
    }


def _read_json(file: Path) -> dict[str, Any]:
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CliError(ExitCode.FAILED, f"{file}: {error}", "See its owner and mode.") from error
    return read if isinstance(read, dict) else {}


def _answers(url: str) -> bool:
    try:
        health = url.removesuffix("/v1") + "/healthz"
        return httpx.get(health, timeout=_TIMEOUT_S, trust_env=False).is_success
    except httpx.HTTPError:
        return False
