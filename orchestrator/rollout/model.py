"""Values: a rollout, and how far it is on each of its devices."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from orchestrator.fleet.view import DeviceId


class Phase(StrEnum):
    """How far one device is."""

    WAITING = "waiting"  # for its batch
    DUE = "due"  # its hub is to order
    ORDERED = "ordered"
    KEPT = "kept"
    CURRENT = "current"  # it ran the version already
    SKIPPED = "skipped"
    REFUSED = "refused"  # it could not install; it never stopped serving
    ROLLED_BACK = "rolled_back"
    LOST = "lost"  # it did not come back in time


OPEN = frozenset({Phase.DUE, Phase.ORDERED})
FAILED = frozenset({Phase.REFUSED, Phase.ROLLED_BACK, Phase.LOST})


class Outcome(StrEnum):
    """How a rollout stands."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"  # more devices failed than it allows
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Rollout:
    """What was asked for. `files` are (name, sha256), the wheel first; times in s and unix ms."""

    id: str
    version: str
    release: str
    files: tuple[tuple[str, str], ...]
    batch_size: int
    max_failures: int
    ready_within_s: int
    drain_within_s: int
    started_unix_ms: int
    cancelled: bool = False
    outcome: Outcome = Outcome.RUNNING
    ended_unix_ms: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """One device of a rollout.

    `models` are those it served before; `epoch` is of the connection that the order went
    down; after `deadline_unix_ms` the device counts as lost.
    """

    device_id: DeviceId
    name: str
    position: int
    phase: Phase = Phase.WAITING
    why: str = ""
    models: tuple[str, ...] = ()
    epoch: int = 0
    deadline_unix_ms: int = 0
    draining: bool = False


def to_json(value: Rollout | Target) -> str:
    """For the store."""
    return json.dumps(asdict(value))


def rollout_from(text: str) -> Rollout:
    """What `to_json` made."""
    fields: dict[str, Any] = json.loads(text)
    fields["files"] = tuple((name, sha256) for name, sha256 in fields["files"])
    fields["outcome"] = Outcome(fields["outcome"])
    return Rollout(**fields)


def target_from(text: str) -> Target:
    """What `to_json` made."""
    fields: dict[str, Any] = json.loads(text)
    fields["models"] = tuple(fields["models"])
    fields["phase"] = Phase(fields["phase"])
    return Target(**fields)
