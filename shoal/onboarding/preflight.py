"""What a device can know before anything is changed on it: memory, disk, ports, the authority.

Run by the install script from the wheel itself (`python -m shoal.onboarding.preflight`
with the wheel as the path), before there is an environment: the standard library
only. Prints `problem:` and `remedy:` lines on stderr; exits 1 when there is one.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import shutil
import socket
import stat
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from shoal.wire import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION, agree_on_protocol

_TIMEOUT_S = 8.0
_MB = 1_000_000
# Measured: agent 70 MB and an engine with the default model and one short sequence about
# 350 MB resident; the rest is for the system.
_MIN_AVAILABLE_BYTES = 500 * _MB
# Measured: the environment takes 330 MB; while a new version is installed there are two.
_INSTALL_BYTES = 700 * _MB
# What the authority allows for (orchestrator/identity/authority.py), less the seconds that
# an answer may take.
_MAX_SKEW_S = 290.0
# Source, object files and the tools that build it.
_COMPILE_BYTES = 1_500 * _MB


@dataclass(frozen=True, slots=True)
class Problem:
    """Why this machine cannot become a device, and what to do about it."""

    text: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Machine:
    """What was seen of this machine; None: it could not be seen."""

    available_bytes: int | None
    free_bytes: int
    compiler: bool


def machine_problems(machine: Machine, *, compiles: bool, model_bytes: int) -> list[Problem]:
    """Memory, disk and compiler against what an installation needs; pure."""
    problems = []
    available = machine.available_bytes
    if available is not None and available < _MIN_AVAILABLE_BYTES:
        problems.append(
            Problem(
                f"{available // _MB} MB of memory are available, an agent with the smallest "
                f"model needs {_MIN_AVAILABLE_BYTES // _MB} MB",
                "end other programs, or add memory",
            )
        )
    needed = _INSTALL_BYTES + model_bytes + (_COMPILE_BYTES if compiles else 0)
    if machine.free_bytes < needed:
        problems.append(
            Problem(
                f"{machine.free_bytes // _MB} MB of disk are free, {needed // _MB} MB are needed",
                "make room, or choose another place with --prefix",
            )
        )
    if compiles and not machine.compiler:
        problems.append(
            Problem(
                "no engine is built for this CPU yet, and there is no C and C++ compiler to do it",
                "Debian, Ubuntu, Raspberry Pi OS: apt install gcc g++ - Fedora: dnf install gcc "
                "gcc-c++ - Alpine: apk add build-base - Arch: pacman -S gcc; or install from a "
                "bundle that was made on a machine with the same CPU",
            )
        )
    return problems


def authority_problem(ca_pem: str, token: str) -> Problem | None:
    """Whether the gateway shows the authority that the token names; pure.

    The agent checks the same before it sends the token; here it saves the installation.
    """
    if not token:
        return None
    pin, seen = token.rpartition(".")[2], _pin_of(ca_pem)
    if not token.startswith("shoal-join.") or len(pin) != len(seen):
        return Problem("--token is not a join token", "make one with: shoal token create")
    if pin != seen:
        return Problem(
            f"the gateway shows authority {seen[:16]}, the token was made for {pin[:16]}",
            "it is another fleet's token, or someone sits in between; nothing was sent",
        )
    return None


def membership_problem(ca_pem: str, own_ca_pem: str, prefix: Path) -> Problem | None:
    """Whether this device belongs to another fleet than the one asked, and would stay there; pure.

    `own_ca_pem`: the authority of the fleet that it has joined, empty when it has joined none.
    """
    if not own_ca_pem or _pin_of(own_ca_pem) == (shown := _pin_of(ca_pem)):
        return None
    return Problem(
        f"this device is a member of another fleet (authority {_pin_of(own_ca_pem)[:16]}; the "
        f"gateway asked shows {shown[:16]})",
        f"to leave that fleet, run {prefix}/shoal-agent uninstall, then this again with a token "
        "of the new one; to be in both, another --prefix",
    )


def _own_ca_pem(prefix: Path) -> str:
    state = prefix / "state"
    # Written last when a device joins: without it, it is a member nowhere.
    if not (state / "identity.json").exists():
        return ""
    try:
        own = (state / "ca.crt").read_text(encoding="ascii")
        _pin_of(own)
    except (OSError, ValueError):
        return ""  # damaged: it joins anew with a token
    return own


def _pin_of(ca_pem: str) -> str:
    body = ca_pem.partition("-----BEGIN CERTIFICATE-----")[2].partition("-----END")[0]
    return hashlib.sha256(base64.b64decode(body)).hexdigest()


def clock_problem(date: str | None, now_unix_s: float) -> Problem | None:
    """Whether certificates of the fleet would look unborn or expired here; pure.

    `date` is the Date header of the gateway's answer.
    """
    try:
        theirs_unix_s = parsedate_to_datetime(date or "").timestamp()
    except (TypeError, ValueError):
        return None
    skew_s = now_unix_s - theirs_unix_s
    if abs(skew_s) <= _MAX_SKEW_S:
        return None
    side = "ahead of" if skew_s > 0 else "behind"
    return Problem(
        f"this machine's clock is {abs(skew_s) / 60:.0f} minutes {side} the fleet's; "
        "certificates would be refused",
        "set the clock: timedatectl set-ntp true, or date -u -s ...",
    )


def fleet_problems(url: str, token: str, prefix: Path) -> list[Problem]:
    """Ask the gateway who it is, and try the ports that the agent will dial.

    `prefix`: where this device is installed, or will be.
    """
    try:
        with _open(f"{url}/shoal/v1/join") as reply:
            page: dict[str, Any] = json.load(reply)
            clock = clock_problem(reply.headers.get("Date"), time.time())
        addresses = [page["enrol_address"], *page["hub_addresses"]]
        low, high = page["protocol"]["min"], page["protocol"]["max"]
        other = membership_problem(page["ca_pem"], _own_ca_pem(prefix), prefix)
        authority = authority_problem(page["ca_pem"], token)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [Problem(f"{url} is not a reachable shoal gateway: {error}", "check --url")]
    problems = [problem for problem in (other, authority, clock) if problem]
    if agree_on_protocol(low, high) is None:
        problems.append(
            Problem(
                f"the fleet speaks protocol {low} to {high}, this version {MIN_PROTOCOL_VERSION} "
                f"to {PROTOCOL_VERSION}",
                "install the version that the fleet serves",
            )
        )
    for address in addresses:
        host, _, port = str(address).rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_S).close()
        except (OSError, ValueError) as error:
            problems.append(
                Problem(
                    f"the fleet's port {address} cannot be reached: {error}",
                    "open it in the firewall; devices only dial out",
                )
            )
    return problems


def _open(url: str) -> Any:
    if not url.startswith(("http://", "https://")):
        raise ValueError("the URL must begin with http:// or https://")
    return urllib.request.urlopen(url, timeout=_TIMEOUT_S)  # noqa: S310 - checked above # nosec B310


def closed_folder(path: Path) -> Path | None:
    """The first folder above `path` that other users may not enter; None when there is none."""
    for folder in reversed(path.parents):
        if folder.exists() and not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None


def look_at_machine(prefix: Path) -> Machine:
    """Read memory, disk and compiler of this machine."""
    existing = prefix
    while not existing.exists():
        existing = existing.parent
    compiler = all(any(map(shutil.which, names)) for names in (("gcc", "cc"), ("g++", "c++")))
    return Machine(_available_bytes(), shutil.disk_usage(existing).free, compiler)


def _available_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def main() -> int:
    """Check and report; the token comes on standard input, to stay out of the process list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--prefix", type=Path, required=True)
    parser.add_argument("--compiles", action="store_true")
    parser.add_argument("--model-bytes", type=int, default=0)
    parser.add_argument("--other-user", action="store_true", help="another user will run it")
    given = parser.parse_args()
    token = sys.stdin.read().strip()
    problems = machine_problems(
        look_at_machine(given.prefix), compiles=given.compiles, model_bytes=given.model_bytes
    )
    if given.other_user:
        for path in (Path(os.path.realpath(sys.executable)), given.prefix):
            if (folder := closed_folder(path)) is not None:
                problems.append(
                    Problem(
                        f"the device's user cannot enter {folder}, which {path} needs",
                        "use a system-wide Python (SHOAL_PYTHON=/usr/bin/python3), another "
                        "--prefix, or --user with your own account",
                    )
                )
    problems += fleet_problems(given.url, token, given.prefix)
    for problem in problems:
        print(f"problem: {problem.text}\n remedy: {problem.remedy}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
