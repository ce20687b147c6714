"""A process that the supervisor starts, hears of through stage lines, and ends.

A child prints one JSON object a line on stdout (`{"stage": …}`); it goes to a
file rather than a pipe, so that the child outlives a killed supervisor.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from shoal.cli.processes import ProcessId
from shoal.home import Home, child_environment

STAGE_POLL_S = 0.05
# A log this long is set aside as `.1` at the next start.
MAX_LOG_BYTES = 10_000_000


class StartError(Exception):
    """A child ended, or said nothing, before it reached the stage that was awaited."""

    def __init__(self, message: str, exit_status: int | None = None) -> None:
        super().__init__(message)
        self.exit_status = exit_status


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one child."""

    name: str
    part: str  # redis | orchestrator | agent
    command: tuple[str, ...]
    grace_s: float  # Between SIGTERM and SIGKILL.
    # For secrets: a command line can be read by every user of the machine.
    environment: Mapping[str, str] = field(default_factory=dict)


class RunningChild:
    """A started child process."""

    def __init__(self, launch: Launch, process: asyncio.subprocess.Process, files: _Files) -> None:
        self.launch = launch
        try:
            self.process_id = ProcessId.of(process.pid)
        except psutil.NoSuchProcess:
            # It has ended already; a start at time 0 names no process that may get its pid.
            self.process_id = ProcessId(process.pid, 0.0)
        self._process = process
        self._files = files
        self._stages_read = 0

    @property
    def name(self) -> str:
        """Name of the child: of its log, and in `up.json`."""
        return self.launch.name

    @property
    def log(self) -> Path:
        """Where its stderr goes."""
        return self._files.log

    async def wait(self) -> int:
        """Exit status once the child has ended; negative: the signal that ended it."""
        return await self._process.wait()

    def new_stages(self) -> list[dict[str, Any]]:
        """Stage lines that were completed since the last call."""
        text = self._files.stages.read_bytes()
        complete = text[: text.rfind(b"\n") + 1]
        fresh, self._stages_read = complete[self._stages_read :], len(complete)
        stages = []
        for line in fresh.splitlines():
            try:
                stage = json.loads(line)
            except ValueError:
                continue  # A library's own output.
            if isinstance(stage, dict) and "stage" in stage:
                stages.append(stage)
        return stages

    async def describe_end(self) -> str:
        """One sentence about a child that has ended: how, and its last words."""
        status = await self.wait()
        if status < 0:
            # Its last log line is from before the signal, and not about it.
            return f"{self.name} ended with signal {signal.Signals(-status).name} (log: {self.log})"
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        last = f": {lines[-1][:400]}" if lines else ""
        return f"{self.name} ended with exit status {status}{last} (log: {self.log})"

    async def until(self, done: Callable[[], bool], limit_s: float) -> None:
        """Poll `done` until it holds; StartError when the child ends first or time is up."""
        ended = asyncio.create_task(self._process.wait())
        try:
            async with asyncio.timeout(limit_s):
                while not done():
                    await asyncio.wait({ended}, timeout=STAGE_POLL_S)
                    if ended.done() and not done():
                        raise StartError(await self.describe_end(), self._process.returncode)
        except TimeoutError:
            message = f"{self.name} was not ready within {limit_s:.0f} s (log: {self.log})"
            raise StartError(message) from None
        finally:
            ended.cancel()

    async def stop(self) -> None:
        """SIGTERM, the launch's grace, then SIGKILL for its whole tree."""
        if self._process.returncode is not None:
            return
        family = _family(self._process.pid)
        self._process.terminate()
        try:
            async with asyncio.timeout(self.launch.grace_s):
                await self._process.wait()
        except TimeoutError:
            for member in family:
                if member.is_running():
                    member.kill()
            await self._process.wait()


@dataclass(frozen=True, slots=True)
class _Files:
    log: Path
    stages: Path


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


async def start_child(home: Home, fleet_id: str, launch: Launch) -> RunningChild:
    """Start the process; its stderr is appended to `logs/<name>.log`."""
    files = _Files(home.logs_dir / f"{launch.name}.log", home.run_dir / f"{launch.name}.stages")
    if files.log.exists() and files.log.stat().st_size > MAX_LOG_BYTES:
        files.log.replace(files.log.with_suffix(".log.1"))
    with files.log.open("ab") as log, files.stages.open("wb") as stages:
        process = await asyncio.create_subprocess_exec(
            *launch.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stages,
            stderr=log,
            env=child_environment(home, fleet_id) | dict(launch.environment),
            # Ctrl-C at the terminal is for the supervisor, which then stops us in order.
            start_new_session=True,
        )
    return RunningChild(launch, process, files)
