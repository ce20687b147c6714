"""Ending a fleet: exactly the processes that `shoal up` started, in good order."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from shoal.cli.fleet_file import FleetRecord, read_record, record_file
from shoal.cli.processes import end_processes, is_alive, marked_processes, wait_for_end
from shoal.home import Home

# The supervisor itself allows its parts 10 + 25 + 10 s.
SUPERVISOR_GRACE_S = 60.0
ORPHAN_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class StopReport:
    """What `shoal down` did."""

    was_running: bool
    num_orphans: int
    survivors: tuple[int, ...]


def stop_fleet(home: Home, say: Callable[[str], None]) -> StopReport:
    """End the supervisor, who ends the rest; then what a killed supervisor left behind.

    Orphans are found by their recorded identity (pid and start time), by descent
    from those, and by the mark that every process of the fleet carries.
    """
    record = read_record(home)
    supervisor = record.supervisor.find() if record else None
    family = _family(record) if record else []
    if supervisor:
        say("stopping agents, orchestrator and Redis")
        supervisor.terminate()
        wait_for_end([supervisor], SUPERVISOR_GRACE_S)
    orphans = {process for process in [*family, *marked_processes(home)] if is_alive(process)}
    if orphans:
        say(f"ending {len(orphans)} processes that were left over")
    survivors = _end_in_order(record, list(orphans))
    if not survivors:
        record_file(home).unlink(missing_ok=True)
        # Local agents keep their sockets under the name of their own state directory.
        for each in (home, *(Home(path) for path in home.path.glob("agents/*"))):
            shutil.rmtree(each.sockets_dir, ignore_errors=True)
    return StopReport(
        was_running=bool(supervisor or orphans),
        num_orphans=len(orphans),
        survivors=tuple(process.pid for process in survivors),
    )


def _family(record: FleetRecord) -> list[psutil.Process]:
    """The recorded processes that still live, with all their descendants."""
    members: list[psutil.Process] = []
    for identity in (record.supervisor, *(child.process for child in record.children)):
        process = identity.find()
        if process:
            members += [process, *_descendants(process)]
    return members


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _end_in_order(
    record: FleetRecord | None, orphans: list[psutil.Process]
) -> list[psutil.Process]:
    """Agents say goodbye before the hub goes, and Redis stays until all have written."""
    roots = {child.process.pid: child.name for child in record.children} if record else {}
    survivors: list[psutil.Process] = []
    agents = [each for each in orphans if roots.get(each.pid, "").startswith("local-")]
    redis = [each for each in orphans if roots.get(each.pid) in ("redis", "cache")]
    rest = [each for each in orphans if each not in agents and each not in redis]
    orchestrators = [each for each in rest if roots.get(each.pid) == "orchestrator"]
    for group in (agents, orchestrators, rest, redis):
        survivors += end_processes(group, ORPHAN_GRACE_S)
    return [each for each in survivors if is_alive(each)]
