"""The fleet of `bench.network`: an orchestrator here, agents behind a router, what is seen."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import psutil

from agent.kv.access import SharedAccess
from agent.session.config import SHARED_KV_FILE
from tests.harness.fleet import Fleet, wait_for
from tests.harness.models import smollm2_file
from tests.harness.netlab import HOST_ADDRESS, NetLab, Place

MODEL = "smollm2-135m-instruct"
POLL_S = 0.1


@dataclass(slots=True)
class Device:
    """One agent in its place."""

    name: str
    place: Place
    home: Path
    process: subprocess.Popen[bytes]

    def stages(self) -> list[dict[str, Any]]:
        """What it said of itself so far."""
        text = (self.home / "stages.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def engines(self) -> list[int]:
        """Pids of its engine processes."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [p.pid for p in children if any("agent.llama.serve" in a for a in p.cmdline())]

    def log(self) -> str:
        """Its log."""
        return (self.home / "agent.log").read_text(encoding="utf-8")


@dataclass(slots=True)
class Watch:
    """States of a device as the admin API shows them, with the time of each change."""

    seen: list[tuple[float, str]] = field(default_factory=list)

    def count(self, state: str) -> int:
        """How often it entered the state."""
        return sum(each == state for _, each in self.seen)

    def first(self, states: set[str], since: float) -> float | None:
        """When it was first seen in one of the states after `since`."""
        return next((at for at, state in self.seen if at >= since and state in states), None)


class NetFleet:
    """Namespaces, orchestrator and agents; ends with the `with` block."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="shoal-net-")
        self.lab = NetLab()
        self.fleet = Fleet("--host", HOST_ADDRESS, "--agents", "0")
        self.devices: dict[str, Device] = {}
        self.watches: dict[str, Watch] = {}
        # A tenant without a policy is local_only, and its KV blocks stay where they were made.
        self.fleet.shoal("tenants", "set", "e2e", "--privacy", "any")
        admin = (self.fleet.home / "keys" / "admin.key").read_text(encoding="utf-8").strip()
        self._http = self.fleet.http(admin)
        self._over = threading.Event()
        self._poller = threading.Thread(target=self._poll, daemon=True)
        self._poller.start()

    def __enter__(self) -> NetFleet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._poller.join()
        for device in self.devices.values():
            self.lab.heal(device.place)
            device.process.terminate()
        self._http.close()
        self.fleet.close()
        self._folder.cleanup()

    def device(self, name: str) -> Device:
        """The device of this name, joined and serving; started at the first call."""
        if name not in self.devices:
            self.devices[name] = self._start(name)
            wait_for(f"{name} serves", lambda: self.serves(name), timeout_s=120)
        return self.devices[name]

    def _start(self, name: str) -> Device:
        token = self.fleet.json("token", "create")["token"]
        home = Path(self._folder.name) / name
        home.mkdir()
        return self._run(name, home, self.lab.add(), token)

    def share_blocks(self, name: str, access: SharedAccess) -> None:
        """Start the device's agent again, with a way to a shared tier that is not the fleet's.

        A fleet that listens beyond its machine shares no blocks: its cache does not.
        """
        device = self.device(name)
        device.process.terminate()
        device.process.wait(timeout=60)
        (device.home / SHARED_KV_FILE).write_bytes(access.to_json())
        self.devices[name] = self._run(name, device.home, device.place, "")
        wait_for(f"{name} is back", lambda: "connected" in str(self.devices[name].stages()),
                 timeout_s=60)  # fmt: skip
        wait_for(f"{name} serves", lambda: self.serves(name), timeout_s=120)

    def _run(self, name: str, home: Path, place: Place, token: str) -> Device:
        command = [
            *(sys.executable, "-m", "agent.app", "--home", str(home), "--name", name),
            *("--join", self.fleet.url, "--model", str(smollm2_file()), "--slots", "2"),
            *("--context", "2048", "--threads", "1", "--calibrate", "never"),
        ]
        with (home / "stages.jsonl").open("wb") as out, (home / "agent.log").open("wb") as log:
            process = subprocess.Popen(
                place.command(command), stdout=out, stderr=log, env=self.fleet.env | {
                    "SHOAL_TOKEN": token, "SHOAL_LOG_LEVEL": "debug"
                },
            )  # fmt: skip
        return Device(name, place, home, process)

    def status(self, name: str) -> dict[str, Any]:
        """What the admin API says of a device; empty when it is none."""
        listed = self._http.get("/shoal/v1/devices").json()["devices"]
        return next((dict(each) for each in listed if each["name"] == name), {})

    def count(self, name: str) -> int:
        """How many devices the fleet knows under this name."""
        listed = self._http.get("/shoal/v1/devices").json()["devices"]
        return sum(each["name"] == name for each in listed)

    def serves(self, name: str) -> bool:
        """Whether it is READY with a READY model."""
        status = self.status(name)
        models = status.get("models", [])
        return status.get("state") == "READY" and any(m["state"] == "READY" for m in models)

    def ask(self, name: str, *, prompt: str = "Name a fish.", tokens: int = 8) -> httpx.Response:
        """One greedy request to this device."""
        with self.fleet.http() as http:
            return http.post(
                "/v1/chat/completions",
                json={
                    "model": MODEL, "max_tokens": tokens, "temperature": 0,
                    "messages": [{"role": "user", "content": prompt}],
                    "shoal": {"device": name},
                },
            )  # fmt: skip

    def link_connections(self) -> int:
        """TCP connections at the hub's link port that the kernel holds for established."""
        with self.fleet.http() as http:
            page = http.get("/shoal/v1/join").json()
        port = page["hub_addresses"][0].rpartition(":")[2]
        done = subprocess.run(
            ["ss", "-Htn", "state", "established", f"( sport = :{port} )"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        # The gateway's own come from this host; devices' from the router.
        return sum("10.77.0.2" in line for line in done.stdout.splitlines())

    def watch(self, name: str) -> Watch:
        """The record of the device's states, which goes on by itself."""
        return self.watches.setdefault(name, Watch())

    def _poll(self) -> None:
        while not self._over.wait(POLL_S):
            try:
                listed = self._http.get("/shoal/v1/devices", timeout=5).json()["devices"]
            except (httpx.HTTPError, KeyError):
                continue
            now = time.monotonic()
            for device in listed:
                seen = self.watch(device["name"]).seen
                if not seen or seen[-1][1] != device["state"]:
                    seen.append((now, device["state"]))
