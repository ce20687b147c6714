"""By default nothing of a fleet can be reached from outside this machine."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import subprocess
import sys
from collections.abc import Callable
from typing import TypeVar

import psutil

from shoal.cli.fleet_file import read_record
from shoal.cli.processes import marked_processes
from shoal.home import Home
from tests.harness.fleet import Fleet

Seen = TypeVar("Seen")


def is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def processes_of(home: Home) -> set[psutil.Process]:
    """By descent and by mark: Redis overwrites its environment, Ray's may be orphans."""
    record = read_record(home)
    assert record
    supervisor = psutil.Process(record.supervisor.pid)
    return {supervisor, *supervisor.children(recursive=True), *marked_processes(home)}


def of_each(fleet: Fleet, look: Callable[[psutil.Process], Seen]) -> list[Seen]:
    """What `look` sees of each process; one that ends meanwhile has nothing any more."""
    seen = []
    for process in processes_of(Home(fleet.home)):
        with contextlib.suppress(psutil.NoSuchProcess):
            seen.append(look(process))
    return seen


def test_every_listening_socket_is_on_loopback(fleet: Fleet) -> None:
    listening = {
        (name, connection.laddr.ip, connection.laddr.port)
        for name, connections in of_each(
            fleet, lambda process: (process.name(), process.net_connections("tcp"))
        )
        for connection in connections
        if connection.status == psutil.CONN_LISTEN
    }
    names = {name for name, _, _ in listening}
    assert {"haproxy", "redis-server", "gcs_server", "raylet"} <= names
    assert fleet.port in {port for _, _, port in listening}
    assert not {each for each in listening if not is_loopback(each[1])}


def test_what_ray_starts_and_nobody_uses_has_ended(fleet: Fleet) -> None:
    commands = of_each(fleet, lambda process: " ".join(process.cmdline()))
    assert any("dashboard/agent.py" in each or "DashboardAgent" in each for each in commands)
    unused = ("log_monitor.py", "autoscaler/_private/monitor.py", "dashboard/dashboard.py")
    assert not [each for each in commands if any(part in each for part in unused)]


def test_ray_lets_nobody_in_without_the_token_of_the_fleet(fleet: Fleet) -> None:
    found = of_each(fleet, lambda process: (process.name(), process.cmdline()))
    (raylet,) = (command for name, command in found if name == "raylet")
    (address,) = (a.split("=")[1] for a in raylet if a.startswith("--gcs-address="))
    code = "import ray, sys; print(len(ray._raylet.GcsClient(sys.argv[1]).get_all_node_info()))"

    def ask(**token: str) -> subprocess.CompletedProcess[str]:
        others = {name: value for name, value in os.environ.items() if "RAY_" not in name}
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, address],
            env=others | token,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    token = str(Home(fleet.home).ray_token_file)
    allowed = ask(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=token)
    assert allowed.stdout.strip() == "1", allowed.stderr
    for refused in (
        ask(RAY_AUTH_MODE="disabled"),
        ask(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64),
    ):
        assert refused.returncode != 0
        assert "Unauthenticated" in refused.stderr or "authentication" in refused.stderr.lower()
