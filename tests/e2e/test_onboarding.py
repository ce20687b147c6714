"""A bare device, by the printed line: it joins, answers, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shoal.home import Home
from tests.harness import companion_server
from tests.harness.fleet import Fleet, wait_for
from tests.harness.ports import free_port

MODEL = "smollm2-135m-instruct"
COMPANION_MODEL = "tiny-1m"


class Device:
    """A prefix of its own, as an account's own folder would be."""

    def __init__(self, folder: Path) -> None:
        self.prefix = folder / "device"
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SHOAL_", "RAY_"))
        } | {"SHOAL_PREFIX": str(self.prefix), "SHOAL_SERVICE": "none"}
        if os.getuid() == 0:
            # An own account would need a Python outside root's home, which not every CI has.
            self.env["SHOAL_USER"] = "root"

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """A line that somebody pastes into a shell."""
        return subprocess.run(
            ["sh", "-c", line], env=self.env, text=True, capture_output=True, check=False,
            timeout=480,
        )  # fmt: skip

    def processes(self) -> list[psutil.Process]:
        """All that runs out of the prefix."""
        found = []
        for process in psutil.process_iter():
            try:
                if any(str(self.prefix) in part for part in process.cmdline()):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    made = Device(tmp_path)
    yield made
    control = made.prefix / "shoal-agent"
    if control.exists():
        subprocess.run([str(control), "uninstall"], check=False, timeout=60)


def shown(fleet: Fleet, name: str) -> dict[str, object]:
    found = [each for each in fleet.status()["devices"] if each["name"] == name]
    return found[0] if found else {"state": "", "models": []}


def serves(fleet: Fleet, name: str) -> bool:
    seen = shown(fleet, name)
    models: list[dict[str, str]] = seen["models"]  # type: ignore[assignment]
    served = {model["name"] for model in models if model["state"] == "READY"}
    return seen["state"] == "READY" and served == {MODEL, COMPANION_MODEL}


@pytest.fixture
def companion() -> Iterator[str]:
    """A server that runs on the device already, as `--companion` names it."""
    port = free_port()
    command = [sys.executable, companion_server.__file__, "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    yield f"http://127.0.0.1:{port}/v1#{COMPANION_MODEL}"
    process.terminate()
    process.wait(20)


def answered_by(fleet: Fleet, model: str, device: str) -> str:
    """Who answered a request for the model that names the device."""
    with fleet.http() as http:
        answer = http.post(
            "/v1/chat/completions",
            json={
                "model": model, "max_tokens": 4, "shoal": {"device": device},
                "messages": [{"role": "user", "content": "Say hello."}],
            },
        )  # fmt: skip
    assert answer.status_code == 200, answer.text
    return answer.headers["x-shoal-device"]


def test_printed_line_makes_a_device_and_uninstalling_leaves_nothing(
    fleet: Fleet, device: Device, companion: str
) -> None:
    made = fleet.json("token", "create")
    line = made["install"]
    assert line == f"curl -fsSL {fleet.url}/shoal/v1/install.sh | sh -s -- --token {made['token']}"

    served = f"--model {MODEL} --companion '{companion}' --kv-type q8_0"
    done = device.run(f"{line} --name hall-3 --slots 1 --context 512 {served}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert made["token"] not in done.stdout + done.stderr
    assert "nothing is compiled" in done.stdout
    wait_for("hall-3 serves", lambda: serves(fleet, "hall-3"), timeout_s=120)
    for model in (MODEL, COMPANION_MODEL):
        assert answered_by(fleet, model, "hall-3") == "hall-3"
    told = fleet.shoal("devices", "show", "hall-3").stdout
    assert "KV in q8_0" in told

    # Ray, and whatever else is the orchestrator's, is not on the device; nor is its token.
    environment = next((device.prefix / "versions").iterdir())
    assert not [*environment.rglob("site-packages/ray"), *environment.rglob("site-packages/fast*")]
    assert not (device.prefix / "state" / "token").exists()

    # A second run, without a token, changes nothing and keeps the identity.
    pids = {process.pid for process in device.processes()}
    again = device.run(f"curl -fsSL {fleet.url}/shoal/v1/install.sh | sh")
    assert again.returncode == 0, again.stderr
    assert "identity is kept" in again.stdout
    assert pids <= {process.pid for process in device.processes()}

    # A device that was removed is told so, and joins anew with a token; what it serves is kept.
    fleet.shoal("devices", "remove", "hall-3")
    refused = device.run(f"curl -fsSL {fleet.url}/shoal/v1/install.sh | sh")
    assert refused.returncode != 0, refused.stdout
    assert "it was removed" in refused.stderr
    assert "shoal token create" in refused.stderr
    anew = device.run(fleet.json("token", "create")["install"])
    assert anew.returncode == 0, anew.stdout + anew.stderr
    assert "joining anew" in anew.stdout
    wait_for("hall-3 serves again", lambda: serves(fleet, "hall-3"), timeout_s=120)

    removed = device.run(f"curl -fsSL {fleet.url}/shoal/v1/install.sh | sh -s -- --uninstall")
    assert removed.returncode == 0, removed.stderr
    assert "shoal devices remove hall-3" in removed.stdout
    assert not device.prefix.exists()
    assert not device.processes()
    assert not Home(device.prefix / "state").sockets_dir.exists()
    fleet.shoal("devices", "remove", "hall-3")


def test_bundle_holds_all_that_a_device_without_a_network_needs(
    fleet: Fleet, device: Device, tmp_path: Path
) -> None:
    bundle = tmp_path / "site.tar"
    made = fleet.json("bundle", "create", "--output", str(bundle))
    with tarfile.open(bundle) as tar:
        tar.extract("install.sh", tmp_path, filter="data")
    token = fleet.json("token", "create")["token"]
    install = f"sh {tmp_path}/install.sh --token {token} --url {fleet.url} --dry-run"
    # No index, no cache of engines, no cache of packages.
    device.env |= {"SHOAL_ENGINE_WHEELS": "/nonexistent", "PIP_NO_INDEX": "1"}

    done = device.run(f"{install} --bundle {bundle}")
    assert done.returncode == 0, done.stderr
    assert "engine for this CPU is cached" in done.stdout
    assert {"grpcio", "numpy", "redis"} <= {
        name.removeprefix("wheels/").split("-")[0] for name in made["files"]
    }

    damaged = tmp_path / "damaged.tar"
    content = bytearray(bundle.read_bytes())
    middle = content.index(b"PK\x03\x04") + 1000
    content[middle] ^= 1
    damaged.write_bytes(content)
    assert "damaged" in device.run(f"{install} --bundle {damaged}").stderr
    other = device.run(f"{install} --bundle {damaged} --bundle-sha256 {made['sha256']}")
    assert "another SHA-256" in other.stderr
    foreign = device.run(
        f"curl -fsSL {fleet.url}/shoal/v1/install.sh | sh -s -- --token {token} --bundle {bundle}"
    )
    assert "was not made for" in foreign.stderr
    assert not device.prefix.exists()
