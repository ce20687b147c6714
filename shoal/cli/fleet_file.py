"""`run/up.json`: what `shoal up` started on this machine, for every other command."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from shoal.cli.processes import ProcessId
from shoal.home import Home


class FleetState(StrEnum):
    """Where the supervisor stands."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Child:
    """One process that the supervisor keeps."""

    name: str
    process: ProcessId
    log: str


@dataclass(frozen=True, slots=True)
class FleetRecord:
    """Content of `up.json`. `fleet_id` marks every process of the fleet."""

    fleet_id: str
    supervisor: ProcessId
    state: FleetState
    port: int
    num_agents: int
    models: tuple[str, ...]
    started_unix_ms: int
    gateway_url: str = ""
    error: str = ""
    children: tuple[Child, ...] = ()

    def with_child(self, child: Child) -> FleetRecord:
        """This record with `child` in the place of an earlier one of its name."""
        others = tuple(each for each in self.children if each.name != child.name)
        return replace(self, children=(*others, child))


def record_file(home: Home) -> Path:
    """Path of `up.json`."""
    return home.run_dir / "up.json"


def write_record(home: Home, record: FleetRecord) -> None:
    """Replace `up.json` in one step; readers see the old or the new text, never half."""
    target = record_file(home)
    draft = target.with_suffix(".tmp")
    draft.write_text(json.dumps(asdict(record), indent=2) + "\n")
    os.replace(draft, target)


def read_record(home: Home) -> FleetRecord | None:
    """The record, or None when nothing was started or the file is not ours to read."""
    try:
        raw: dict[str, Any] = json.loads(record_file(home).read_text())
        return FleetRecord(
            fleet_id=raw["fleet_id"],
            supervisor=ProcessId(**raw["supervisor"]),
            state=FleetState(raw["state"]),
            port=raw["port"],
            num_agents=raw["num_agents"],
            models=tuple(raw["models"]),
            started_unix_ms=raw["started_unix_ms"],
            gateway_url=raw["gateway_url"],
            error=raw["error"],
            children=tuple(
                Child(each["name"], ProcessId(**each["process"]), each["log"])
                for each in raw["children"]
            ),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        # Written by another version: `shoal down` then goes by the processes' marks alone.
        return None
