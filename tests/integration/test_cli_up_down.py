"""`shoal up` and `shoal down` with real processes: Redis, Ray, hub and gateway, no agent."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shoal.cli.fleet_file import FleetRecord, read_record
from shoal.cli.processes import is_alive, marked_processes, wait_for_end
from shoal.home import Home
from tests.harness.fleet import wait_for
from tests.harness.ports import free_port

SHOAL = Path(sys.executable).parent / "shoal"


class CommandLine:
    """`shoal` with a state directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.home = Home(directory)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SHOAL_", "RAY_"))}
        self._environment = clean | {"SHOAL_HOME": str(directory)}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(SHOAL), *arguments],
            env=self._environment,
            check=False,
            text=True,
            capture_output=True,
            timeout=240,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(SHOAL), *arguments],
            env=self._environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def record(self) -> FleetRecord:
        record = read_record(self.home)
        assert record
        return record


@pytest.fixture
def shoal(tmp_path: Path) -> Iterator[CommandLine]:
    command_line = CommandLine(tmp_path / "home")
    yield command_line
    command_line.run("down")


def test_without_a_fleet_each_command_says_how_to_start_one(shoal: CommandLine) -> None:
    for command in (["status"], ["devices"], ["chat", "hi"], ["explain", "x"]):
        done = shoal.run(*command, "--json")
        assert done.returncode == 3
        assert "shoal up" in json.loads(done.stdout)["error"]["remedy"]


def test_down_without_a_fleet_is_no_error(shoal: CommandLine) -> None:
    done = shoal.run("down", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["was_running"] is False


def test_taken_port_is_named_with_a_remedy(shoal: CommandLine) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = shoal.run("up", "--detach", "--port", str(port))
    assert done.returncode == 4
    assert str(port) in done.stderr
    assert "--port" in done.stderr


def test_missing_model_file_is_a_usage_error(shoal: CommandLine) -> None:
    done = shoal.run("up", "--detach", "--model", "no/such.gguf")
    assert done.returncode == 2
    assert "no/such.gguf" in done.stderr


def test_fleet_comes_up_once_and_down_leaves_nothing(shoal: CommandLine) -> None:
    port = str(free_port())
    first = shoal.run("up", "--detach", "--agents", "0", "--port", port, "--json")
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["already_running"] is False

    again = shoal.run("up", "--detach", "--json")
    assert json.loads(again.stdout)["already_running"] is True
    assert shoal.run("up", "--detach", "--agents", "2").returncode == 13

    status = json.loads(shoal.run("status", "--json").stdout)
    assert status["gateway_url"] == f"http://127.0.0.1:{port}"
    assert status["devices"] == []
    assert json.loads(shoal.run("keys", "create", "--json").stdout)["key"]
    assert json.loads(shoal.run("token", "create", "--json").stdout)["token"]
    assert shoal.run("explain", "no-such-request").returncode == 8

    started = marked_processes(shoal.home)
    assert len(started) > 3
    assert shoal.run("down").returncode == 0
    assert not [process for process in started if is_alive(process)]
    assert not marked_processes(shoal.home)


def test_down_ends_what_killed_parents_left_behind(shoal: CommandLine) -> None:
    done = shoal.run("up", "--detach", "--agents", "0", "--port", str(free_port()))
    assert done.returncode == 0, done.stderr
    record = shoal.record()
    parents = [record.supervisor, *(c.process for c in record.children if c.name != "redis")]
    for identity in parents:
        os.kill(identity.pid, signal.SIGKILL)
    wait_for_end([psutil.Process(p.pid) for p in parents if psutil.pid_exists(p.pid)], 10)

    assert shoal.run("down").returncode == 0
    assert not marked_processes(shoal.home)


def test_foreground_up_reports_the_death_of_the_orchestrator(shoal: CommandLine) -> None:
    with shoal.start("up", "--agents", "0", "--port", str(free_port())) as up:
        assert up.stdout
        first_line = up.stdout.readline()
        assert "The fleet is up" in first_line, up.communicate(timeout=120)[1]
        record = shoal.record()
        orchestrator = next(c.process for c in record.children if c.name == "orchestrator")
        os.kill(orchestrator.pid, signal.SIGKILL)
        _, errors = up.communicate(timeout=120)
    assert up.returncode == 1
    assert "orchestrator ended with signal SIGKILL" in errors
    assert "orchestrator" in shoal.record().error
    assert not marked_processes(shoal.home)
    assert "SIGKILL" in shoal.run("status").stderr


def test_interrupt_while_starting_ends_what_was_started(shoal: CommandLine) -> None:
    with shoal.start("up", "--agents", "0", "--port", str(free_port())) as up:
        wait_for("Redis runs", lambda: bool(marked_processes(shoal.home)), timeout_s=60)
        up.send_signal(signal.SIGTERM)
        up.communicate(timeout=120)
    assert up.returncode == 130
    assert not marked_processes(shoal.home)
