"""By default nothing of a fleet can be reached from outside this machine."""

from __future__ import annotations

import ipaddress

import psutil

from shoal.cli.fleet_file import read_record
from shoal.cli.processes import marked_processes
from shoal.home import Home
from tests.harness.fleet import Fleet


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


def test_every_listening_socket_is_on_loopback(fleet: Fleet) -> None:
    listening = {
        (process.name(), connection.laddr.ip, connection.laddr.port)
        for process in processes_of(Home(fleet.home))
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    names = {name for name, _, _ in listening}
    assert {"haproxy", "redis-server", "gcs_server", "raylet"} <= names
    assert fleet.port in {port for _, _, port in listening}
    assert not {each for each in listening if not is_loopback(each[1])}
