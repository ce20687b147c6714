"""Start and end the two systems that are compared, each alone on the machine."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench.load import Target

REPO = Path(__file__).resolve().parent.parent
SHOAL = Path(sys.executable).parent / "shoal"
_READY_WITHIN_S = 60.0


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def llama_server(binary: Path, model: Path, *, slots: int, context: int) -> Iterator[Target]:
    """Run llama-server with `slots` slots of `context` tokens on two threads."""
    port = free_port()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [binary, "-m", model, "--host", "127.0.0.1", "--port", str(port), "-np", str(slots),
             "-c", str(slots * context), "-t", str(os.cpu_count()), "-fa", "on", "--jinja"],
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            wait_for(f"http://127.0.0.1:{port}/health", process)
            yield Target(f"http://127.0.0.1:{port}", model.stem)
        finally:
            process.terminate()
            process.wait(30)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until the process answers `url` with 200; RuntimeError when it ends or is too late."""
    deadline = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError),
            urllib.request.urlopen(url, timeout=2) as answer,
        ):
            if answer.status == 200:
                return
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} exited with {process.returncode}")
        time.sleep(0.1)
    raise RuntimeError(f"{url} did not answer within {_READY_WITHIN_S:.0f} s")


def fleet_environment(home: Path) -> dict[str, str]:
    """The environment in which the command line means the fleet of this state directory."""
    env = {**os.environ, "SHOAL_HOME": str(home)}
    env.pop("SHOAL_URL", None)
    env.pop("SHOAL_API_KEY", None)
    return env


@contextlib.contextmanager
def shoal_fleet(model: Path, *options: str, home: Path | None = None) -> Iterator[Target]:
    """Bring up a fleet of its own with `model`, and take it down again.

    `home` keeps the state directory (and so the disk tier) between two fleets.
    """
    with contextlib.ExitStack() as stack:
        if home is None:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-bench-")))
        env = fleet_environment(home)
        command = [
            SHOAL, "up", "--detach", "--port", str(free_port()), "--model", model, *options,
        ]  # fmt: skip
        subprocess.run(command, env=env, check=True, stdout=sys.stderr)
        try:
            yield fleet_target(env)
        finally:
            subprocess.run([SHOAL, "down"], env=env, check=True, stdout=sys.stderr)


def fleet_target(env: dict[str, str]) -> Target:
    """The running fleet's endpoint, its first model and a fresh API key."""
    status = json.loads(subprocess.check_output([SHOAL, "status", "--json"], env=env))
    key = json.loads(subprocess.check_output([SHOAL, "keys", "create", "--json"], env=env))
    name = status["devices"][0]["models"][0]
    return Target(
        status["gateway_url"], name["name"] if isinstance(name, dict) else name, key["key"]
    )
