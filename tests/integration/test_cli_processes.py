"""Real processes: who is found, who is ended, and who is left alone."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shoal.cli.processes import ProcessId, end_processes, is_alive, marked_processes
from shoal.home import Home, child_environment

SLEEP = "import time; print('up', flush=True); time.sleep(120)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def start(
    started: list[subprocess.Popen[bytes]], code: str, environment: dict[str, str] | None = None
) -> psutil.Process:
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment
    )
    started.append(process)
    assert process.stdout
    assert process.stdout.readline() == b"up\n"
    return psutil.Process(process.pid)


def test_identity_finds_its_process(started: list[subprocess.Popen[bytes]]) -> None:
    process = start(started, SLEEP)
    assert ProcessId.of(process.pid).find() == process


def test_reused_pid_is_not_taken_for_the_same_process() -> None:
    here = ProcessId.of(os.getpid())
    assert ProcessId(here.pid, here.create_time - 60).find() is None


def test_dead_process_that_was_not_collected_is_not_alive(
    started: list[subprocess.Popen[bytes]],
) -> None:
    process = start(started, SLEEP)
    identity = ProcessId.of(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(process)
    assert identity.find() is None


def test_marked_processes_are_found_and_others_are_not(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    home, other = Home(tmp_path / "a"), Home(tmp_path / "b")
    ours = start(started, SLEEP, child_environment(home, "one"))
    start(started, SLEEP, child_environment(other, "one"))
    start(started, SLEEP)
    assert marked_processes(home) == [ours]
    assert marked_processes(home, "one") == [ours]
    assert marked_processes(home, "two") == []


def test_orphan_of_a_killed_parent_is_still_found(tmp_path: Path) -> None:
    home = Home(tmp_path)
    # The orphan must not hold the pipe that its parent's pid line comes through.
    code = (
        "import subprocess, sys; command = [sys.executable, '-c', 'import time; time.sleep(120)']; "
        "print(subprocess.Popen(command, stdout=subprocess.DEVNULL).pid)"
    )
    environment = child_environment(home, "one")
    parent = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, stdout=subprocess.PIPE
    )
    orphan = psutil.Process(int(parent.stdout))
    assert marked_processes(home) == [orphan]
    assert end_processes([orphan], grace_s=10) == []
    assert marked_processes(home) == []


def test_process_that_ignores_sigterm_is_killed(started: list[subprocess.Popen[bytes]]) -> None:
    process = start(started, STUBBORN)
    assert end_processes([process], grace_s=0.2) == []
    assert started[0].wait() == -signal.SIGKILL
