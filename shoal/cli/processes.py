"""Processes by identity: a pid alone may name another process after a while."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from shoal.home import FLEET_VARIABLE, Home

# Linux counts a process's start in 1/100 s; two readings of one process agree to that.
CREATE_TIME_TOLERANCE_S = 0.05
END_POLL_S = 0.05
KILL_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A pid and when it began (unix seconds): together they name one process for ever."""

    pid: int
    create_time: float

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Identity of the running process `pid`; psutil.NoSuchProcess when it is gone."""
        return cls(pid, psutil.Process(pid).create_time())

    def find(self) -> psutil.Process | None:
        """The process, if it is still the same one and runs."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.create_time) < CREATE_TIME_TOLERANCE_S
        except psutil.NoSuchProcess:
            return None
        return process if same and is_alive(process) else None


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; one that only waits for its parent to collect it does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def marked_processes(home: Home, fleet_id: str | None = None) -> list[psutil.Process]:
    """Every running process of this home's fleet, however it was orphaned.

    Found by the mark in the environment (FLEET_VARIABLE, SHOAL_HOME) that each
    child inherits. Without `fleet_id`: of any fleet that this home ever started.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.uids().real != os.getuid():
                continue
            environment = process.environ()
            mark = environment.get(FLEET_VARIABLE)
            ours = mark and environment.get("SHOAL_HOME") == str(home.path)
            if ours and fleet_id in (None, mark) and is_alive(process):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def end_processes(processes: Sequence[psutil.Process], grace_s: float) -> list[psutil.Process]:
    """SIGTERM, up to `grace_s` of patience, SIGKILL; returns those that still live."""
    _signal_each(processes, kill=False)
    alive = wait_for_end(processes, grace_s)
    _signal_each(alive, kill=True)
    return wait_for_end(alive, KILL_GRACE_S)


def wait_for_end(processes: Sequence[psutil.Process], limit_s: float) -> list[psutil.Process]:
    """Those that still live after `limit_s`, or at once when all have ended."""
    deadline = time.monotonic() + limit_s
    alive = [process for process in processes if is_alive(process)]
    while alive and time.monotonic() < deadline:
        time.sleep(END_POLL_S)
        alive = [process for process in alive if is_alive(process)]
    return alive


def _signal_each(processes: Sequence[psutil.Process], *, kill: bool) -> None:
    for process in processes:
        try:
            if kill:
                process.kill()
            else:
                process.terminate()
        except psutil.NoSuchProcess:
            continue
