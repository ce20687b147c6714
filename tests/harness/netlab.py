"""A small internet of network namespaces: a fleet's host, a router with NAT, devices behind it.

    this process 10.77.0.1 ──── 10.77.0.2 router, masquerades ──── 192.168.N.2 device N

`enter` puts a command into namespaces of its own (network, mounts, processes) first, so
nothing of the machine's is touched and all that it started ends with it. Loss is made by
nftables in the router, and a slow uplink by tc's token bucket, which more kernels have than
netem. A packet that is lost here is lost without a word, as on a real path.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

HOST_ADDRESS = "10.77.0.1"
_ROUTER_ADDRESS = "10.77.0.2"
_INSIDE = "--inside"
# What the laboratory needs of the kernel, tried in namespaces that end at once.
_PROBE = """set -e
ip link add name a type veth peer name b
tc qdisc add dev a root tbf rate 1mbit burst 32kbit latency 400ms
nft add table ip probe
nft 'add chain ip probe nat { type nat hook postrouting priority 100 ; }'
nft add rule ip probe nat masquerade random
nft 'add chain ip probe loss { type filter hook forward priority 0 ; }'
nft 'add rule ip probe loss numgen random mod 100 < 10 drop'
"""
_UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")


def missing() -> str:
    """Why no namespaces can be made here; empty when they can."""
    for tool in ("unshare", "ip", "tc", "nft", "ss"):
        if not shutil.which(tool):
            return f"the program {tool} is missing (util-linux, iproute2, nftables)"
    done = subprocess.run([*_UNSHARE, "sh", "-c", _PROBE], capture_output=True, text=True)  # noqa: PLW1510
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return f"no rights to network namespaces, or the kernel lacks a part ({reason})"
    return ""


def enter(command: Sequence[str], *, network: bool = True) -> None:
    """Run `command` (of this Python) in namespaces of its own instead of this process.

    It finds `inside()` true. Returns only when it is there already. Without `network`
    it keeps the machine's.
    """
    if not inside():
        unshare = _UNSHARE if network else [part for part in _UNSHARE if part != "--net"]
        os.execvp("unshare", [*unshare, sys.executable, *command, _INSIDE])


def inside() -> bool:
    """Whether `enter` did its work."""
    return _INSIDE in sys.argv


@dataclass(frozen=True, slots=True)
class Place:
    """Where a device stands: its namespace, its interface there, the router's towards it."""

    namespace: str
    interface: str
    router_interface: str

    def command(self, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` there."""
        return ["ip", "netns", "exec", self.namespace, *command]


class NetLab:
    """Built at once, inside `enter`; vanishes with the process."""

    def __init__(self) -> None:
        # Names of namespaces are files: in a folder that is ours alone.
        os.makedirs("/run/netns", exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
        run("ip", "link", "set", "lo", "up")
        run("ip", "netns", "add", "router")
        run("ip", "link", "add", "host", "type", "veth", "peer", "name", "wan", "netns", "router")
        run("ip", "addr", "add", f"{HOST_ADDRESS}/24", "dev", "host")
        run("ip", "link", "set", "host", "up")
        _in_router("ip", "link", "set", "lo", "up")
        _in_router("ip", "addr", "add", f"{_ROUTER_ADDRESS}/24", "dev", "wan")
        _in_router("ip", "link", "set", "wan", "up")
        _in_router("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        self._tell_nft("add table ip lab")
        self._tell_nft("add chain ip lab nat { type nat hook postrouting priority 100 ; }")
        self._tell_nft("add rule ip lab nat oifname wan masquerade")
        self._tell_nft("add chain ip lab loss { type filter hook forward priority 0 ; }")
        self._losses: dict[str, tuple[int, int]] = {}
        self._num_places = 0

    def add(self) -> Place:
        """One more network with one device's place in it, behind the router."""
        self._num_places += 1
        number = self._num_places
        place = Place(f"device{number}", "eth0", f"lan{number}")
        run("ip", "netns", "add", place.namespace)
        _in_router(
            *("ip", "link", "add", place.router_interface, "type", "veth"),
            *("peer", "name", place.interface, "netns", place.namespace),
        )
        _in_router("ip", "addr", "add", f"192.168.{number}.1/24", "dev", place.router_interface)
        _in_router("ip", "link", "set", place.router_interface, "up")
        run(*place.command(["ip", "link", "set", "lo", "up"]))
        run(*place.command(["ip", "addr", "add", f"192.168.{number}.2/24", "dev", "eth0"]))
        run(*place.command(["ip", "link", "set", "eth0", "up"]))
        run(*place.command(["ip", "route", "add", "default", "via", f"192.168.{number}.1"]))
        return place

    def lose(self, place: Place, *, up: int = 0, down: int = 0) -> None:
        """Lose so many packets of a hundred from (`up`) and to (`down`) the device."""
        self._losses[place.router_interface] = (up, down)
        self._tell_nft("flush chain ip lab loss")
        for interface, percents in self._losses.items():
            for way, percent in zip(("iifname", "oifname"), percents, strict=True):
                some = "" if percent >= 100 else f"numgen random mod 100 < {percent}"
                if percent:
                    self._tell_nft(f"add rule ip lab loss {way} {interface} {some} drop")

    def cut(self, place: Place) -> None:
        """Lose everything both ways."""
        self.lose(place, up=100, down=100)

    def heal(self, place: Place) -> None:
        """Lose nothing."""
        self.lose(place)

    def limit(self, place: Place, mbit_per_s: float) -> None:
        """Let no more than this through from and to the device."""
        bucket = ["tbf", "rate", f"{mbit_per_s}mbit", "burst", "64kb", "latency", "200ms"]
        change = ["qdisc", "replace", "dev"]
        run(*place.command(["tc", *change, place.interface, "root", *bucket]))
        _in_router("tc", *change, place.router_interface, "root", *bucket)

    def unlimit(self, place: Place) -> None:
        """The links' own speed again."""
        run(*place.command(["tc", "qdisc", "del", "dev", place.interface, "root"]))
        _in_router("tc", "qdisc", "del", "dev", place.router_interface, "root")

    def _tell_nft(self, rule: str) -> None:
        _in_router("nft", rule)

    def reaches(self, address: str) -> bool:
        """Whether this process can dial a device's own address, as a hub that dialled would."""
        with socket.socket() as probe:
            probe.settimeout(1)
            # 0: connected; refused: somebody is there.
            return probe.connect_ex((address, 22)) in (0, errno.ECONNREFUSED)


def run(*command: str) -> None:
    """Run a tool; RuntimeError with its words when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def _in_router(*command: str) -> None:
    run("ip", "netns", "exec", "router", *command)
