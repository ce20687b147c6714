"""A fleet of agents, one core and one engine thread each, that can be slowed and stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.load import Target
from bench.servers import SHOAL, free_port

NAMES = ("one", "two")
_READY_WITHIN_S = 180.0
# Far below what the hub takes for silence, far above the kernel's time slices.
_PERIOD_S = 0.1


@dataclass(frozen=True, slots=True)
class Pair:
    """The running fleet; `agents` by device name."""

    target: Target
    agents: dict[str, psutil.Process]
    env: dict[str, str]

    def engine(self, name: str) -> psutil.Process:
        """The device's engine process."""
        return next(
            child
            for child in self.agents[name].children()
            if "agent.llama.serve" in child.cmdline()
        )

    def processes(self, name: str) -> list[psutil.Process]:
        """The whole device: agent, engine and what belongs to it."""
        return [self.agents[name], *self.agents[name].children(recursive=True)]

    def wait_ready(self) -> None:
        """Until both devices take requests; TimeoutError after a while."""
        deadline = time.monotonic() + _READY_WITHIN_S
        while not all(_takes_requests(device) for device in self._devices()):
            if time.monotonic() > deadline:
                raise TimeoutError("the agents did not become ready")
            time.sleep(0.2)

    def _devices(self) -> list[dict[str, object]]:
        found = json.loads(subprocess.check_output([SHOAL, "devices", "--json"], env=self.env))
        devices: list[dict[str, object]] = found["devices"]
        return devices if len(devices) == len(self.agents) else [{"state": "absent"}]


def _takes_requests(device: dict[str, object]) -> bool:
    models: object = device.get("models")
    return device["state"] == "READY" and any(
        model["state"] == "READY" and not model["condition"]
        for model in (models if isinstance(models, list) else [])
    )


@contextlib.contextmanager
def pair(model: Path, *, slots: int, names: Sequence[str] = NAMES) -> Iterator[Pair]:
    """Bring the fleet up without a local agent, start these, and end it all at the end."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as home:
        env = {
            name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")
        } | {"SHOAL_HOME": home}
        port = str(free_port())
        command = [SHOAL, "up", "--detach", "--port", port, "--agents", "0"]
        subprocess.run(command, env=env, check=True, stdout=sys.stderr)
        agents: list[subprocess.Popen[bytes]] = []
        try:
            url = json.loads(subprocess.check_output([SHOAL, "status", "--json"], env=env))[
                "gateway_url"
            ]
            for number, name in enumerate(names):
                agents.append(_start_agent(name, number, (model, slots, url), env))
            key = json.loads(subprocess.check_output([SHOAL, "keys", "create", "--json"], env=env))
            by_name = {n: psutil.Process(a.pid) for n, a in zip(names, agents, strict=True)}
            running = Pair(Target(url, "", key["key"]), by_name, env)
            running.wait_ready()
            yield Pair(Target(url, _model_name(env), key["key"]), by_name, env)
        finally:
            for agent in agents:
                agent.send_signal(signal.SIGCONT)
                agent.terminate()
            for agent in agents:
                agent.wait(30)
            subprocess.run([SHOAL, "down"], env=env, check=True, stdout=sys.stderr)


def _model_name(env: dict[str, str]) -> str:
    listing = json.loads(subprocess.check_output([SHOAL, "models", "--json"], env=env))
    return str(listing["models"][0]["id"])


def _start_agent(
    name: str, number: int, what: tuple[Path, int, str], env: dict[str, str]
) -> subprocess.Popen[bytes]:
    model, slots, url = what
    token = json.loads(subprocess.check_output([SHOAL, "token", "create", "--json"], env=env))
    core = number % (os.cpu_count() or 1)
    with open(Path(env["SHOAL_HOME"]) / f"{name}.log", "wb") as log:
        agent = subprocess.Popen(
            [sys.executable, "-m", "agent.app", "--home", f"{env['SHOAL_HOME']}/bench-{name}",
             "--name", name, "--join", url, "--model", model, "--slots", str(slots),
             "--context", "2048", "--threads", "1"],
            env={**env, "SHOAL_TOKEN": token["token"]}, stdout=log, stderr=log,
        )  # fmt: skip
    # Before it starts its engine, which inherits the core.
    psutil.Process(agent.pid).cpu_affinity([core])
    return agent


@contextlib.contextmanager
def throttled(process: psutil.Process, times: float) -> Iterator[None]:
    """Let the process run one part in `times` of the time, by SIGSTOP and SIGCONT."""
    done = threading.Event()

    def cycle() -> None:
        while not done.is_set():
            process.send_signal(signal.SIGCONT)
            time.sleep(_PERIOD_S / times)
            process.send_signal(signal.SIGSTOP)
            time.sleep(_PERIOD_S * (1 - 1 / times))
        process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=cycle, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def stopped(processes: list[psutil.Process]) -> Iterator[None]:
    """Freeze the processes with SIGSTOP; they go on at the end."""
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in reversed(processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
