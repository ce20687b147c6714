"""A real fleet for end-to-end tests: `shoal up` with a state directory of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.harness.ports import free_port

SHOAL = Path(sys.executable).parent / "shoal"


class Fleet:
    """One `shoal up --detach`; `close()` ends it."""

    def __init__(self, *options: str) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="shoal-e2e-")
        self.home = Path(self._home.name)
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SHOAL_", "RAY_"))
        } | {"SHOAL_HOME": self._home.name, "SHOAL_LOG_LEVEL": "debug"}
        self.port = free_port()
        done = self.shoal("up", "--detach", "--port", str(self.port), *options, check=False)
        if done.returncode != 0:
            logs = "\n".join(
                f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}"
                for path in sorted((self.home / "logs").glob("*"))
                if path.is_file()
            )
            self.close()
            raise RuntimeError(f"shoal up failed:\n{done.stdout}\n{done.stderr}\n{logs}")
        self.url = self.status()["gateway_url"]
        self.key = self.json("keys", "create", "--tenant", "e2e")["key"]

    def shoal(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the command line against this fleet."""
        return subprocess.run(
            [str(SHOAL), *arguments],
            env=self.env, text=True, capture_output=True, check=check, timeout=240,
        )  # fmt: skip

    def json(self, *arguments: str) -> dict[str, Any]:
        """Run a command with --json and parse what it prints."""
        return dict(json.loads(self.shoal(*arguments, "--json").stdout))

    def status(self) -> dict[str, Any]:
        """`shoal status --json`."""
        return self.json("status")

    @property
    def model(self) -> str:
        """The name of the first model of the first device."""
        first = self.status()["devices"][0]["models"][0]
        return str(first["name"] if isinstance(first, dict) else first)

    def http(self, key: str | None = None) -> httpx.Client:
        """An HTTP client with this fleet's API key, or another."""
        return httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key or self.key}"},
            timeout=120,
        )

    def close(self) -> None:
        """End the fleet and remove its state."""
        self.shoal("down", check=False)
        self._home.cleanup()


def wait_for(what: str, condition: Callable[[], bool], *, timeout_s: float) -> float:
    """Poll until `condition` holds; returns the seconds it took, or raises TimeoutError."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > timeout_s:
            raise TimeoutError(f"{what} did not happen within {timeout_s} s")
        time.sleep(0.05)
    return time.monotonic() - started
