"""Where this machine's agents keep their state, and which of them a command is about."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from shoal.cli.exit_codes import CliError, ExitCode
from shoal.device_names import DEVICE_NAME_RULE, may_name_a_device
from shoal.home import agent_prefixes, default_home

IDENTITY = "identity.json"


def check_device_name(name: str, option: str = "--name") -> str:
    """The name, if a fleet takes it; CliError USAGE before it becomes a folder."""
    if may_name_a_device(name):
        return name
    told = name if len(name) <= 70 else f"{name[:70]}…"
    raise CliError(
        ExitCode.USAGE, f"{option} {told!r}: {DEVICE_NAME_RULE}.", f"Pass {option} NAME."
    )


def joined_homes() -> list[Path]:
    """Homes of the agents that joined a fleet from here, as far as this account can see."""
    prefixes = agent_prefixes()
    own = Path(sys.prefix).parent
    if own.name == "versions":  # this command line was installed with an agent
        prefixes.insert(0, own.parent)
    homes = [prefix / "state" for prefix in prefixes]
    homes += sorted((default_home().path / "agents").glob("*"))
    # Not Path.is_file, which raises where this account may not look.
    return [home for home in dict.fromkeys(homes) if os.path.isfile(home / IDENTITY)]


def home_of_agent(name: str | None) -> Path:
    """Home of the agent of this name, or of the only one here.

    CliError NOT_FOUND: there is none; USAGE: there are several, which it lists.
    """
    if name is not None:
        check_device_name(name)
    homes = joined_homes()
    meant = [home for home in homes if name is None or name in (_name_of(home), home.name)]
    if len(meant) == 1:
        return meant[0]
    listed = ", ".join(f"{_name_of(home)} ({home})" for home in meant or homes)
    if meant:
        raise CliError(
            ExitCode.USAGE,
            f"Several agents are here: {listed}.",
            "Say which with --name NAME or --state-dir DIR.",
        )
    which = "No agent" if name is None else f"No agent named {name}"
    others = f"; there are: {listed}" if homes else ""
    raise CliError(
        ExitCode.NOT_FOUND,
        f"{which} has joined a fleet from here, as far as this account can see{others}.",
        "Pass --state-dir DIR (PREFIX/state of an installed agent), or run it as the agent's own "
        "account.",
    )


def _name_of(home: Path) -> str:
    try:
        identity = json.loads((home / IDENTITY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return home.name
    return str(identity.get("name") or home.name) if isinstance(identity, dict) else home.name
