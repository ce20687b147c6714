"""A device from its install line through an upgrade and one that has to be taken back.

    .venv/bin/python -m bench.upgrade --save            # some 3 minutes; needs a package index

A real fleet, a device installed by the printed line, two wheels beside the served one: a
version that works, rolled out while the command that ordered it is gone, and one that ends
at its start. Then the device is uninstalled.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.machine import machine
from shoal import __version__
from shoal.onboarding.wheel import build_wheel
from tests.harness.fleet import Fleet, wait_for

RESULTS = Path(__file__).parent / "results" / "upgrade.json"
NAME = "hall-3"
MODEL = "smollm2-135m-instruct"
GOOD, BAD = f"{__version__}+next", f"{__version__}+broken"
LIMIT_S = 240.0
_STOPPED = "\nif __name__ == '__main__':\n    raise SystemExit('this version ends at once')\n"


def main() -> int:
    """Command line; 1 when something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-upgrade-") as folder:
        result = _trial(Path(folder) / "device")
    print(json.dumps(result, indent=2))
    if options.save:
        RESULTS.write_text(json.dumps({"machine": machine(), **result}, indent=2) + "\n")
    return 0 if all(result["held"].values()) else 1


def _trial(prefix: Path) -> dict[str, Any]:
    held: dict[str, bool] = {}
    took: dict[str, float] = {}
    fleet = Fleet("--slots", "2", "--context", "512")
    try:
        began = time.monotonic()
        line = fleet.json("token", "create")["install"]
        steps = _steps(_shell(f"{line} --name {NAME} --slots 1 --context 512", prefix))
        took["from_token_to_first_token_s"] = _until_served(fleet, began)
        _put_releases(fleet.home / "depot" / "releases")
        began = time.monotonic()
        order = ("agents", "upgrade", "--selector", f"name={NAME}", "--ready-within", "120")
        fleet.shoal(*order, "--version", GOOD, "--detach")
        with ThreadPoolExecutor() as pool:  # so that there is something to drain
            asking = pool.submit(_ask_until_it_drains, fleet)
            states = _watch(fleet)
        held["what_ran_while_it_drained_was_finished"] = asking.result()
        took["upgrade_s"] = round(time.monotonic() - began, 1)
        held["upgraded_without_the_command"] = _phase(fleet) == "kept"
        held["was_shown_draining"] = "DRAINING" in states
        held["runs_the_new_version"] = _device(fleet)["agent_version"] == GOOD
        began = time.monotonic()
        failed = fleet.shoal(*order, "--version", BAD, check=False)
        took["taken_back_s"] = round(time.monotonic() - began, 1)
        held["bad_version_ends_the_rollout_with_1"] = failed.returncode == 1
        held["bad_version_was_taken_back"] = _phase(fleet) == "rolled_back"
        wait_for("it serves again", lambda: _serves(fleet), timeout_s=LIMIT_S)
        held["goes_on_with_the_version_before"] = _device(fleet)["agent_version"] == GOOD
        reason = _device(fleet)["installation"]["failure"]
        _shell(f"curl -fsSL {fleet.url}/shoal/v1/install.sh | sh -s -- --uninstall", prefix)
        held["uninstalling_leaves_nothing"] = not prefix.exists()
    finally:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run([str(prefix / "shoal-agent"), "uninstall"], check=False, timeout=60)
        fleet.close()
    return {"held": held, "seconds": took, "install_steps_s": steps, "why_taken_back": reason}


def _put_releases(folder: Path) -> None:
    """Two wheels like the served one, but for their versions, and for one its first line."""
    folder.mkdir(exist_ok=True)
    for version, ending in ((GOOD, ""), (BAD, _STOPPED)):
        name = f"shoal_agent-{version}-py3-none-any.whl"
        (folder / name).write_bytes(_repacked(version, ending))


def _repacked(version: str, ending: str) -> bytes:
    old, new = f"shoal_agent-{__version__}.", f"shoal_agent-{version}."
    record: list[str] = []
    with tempfile.TemporaryFile() as file:
        file.write(build_wheel().content)
        target = tempfile.SpooledTemporaryFile()  # noqa: SIM115 - closed below
        with target, zipfile.ZipFile(file) as source:
            with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
                for item in source.infolist():
                    content = source.read(item)
                    item.filename = item.filename.replace(old, new)
                    if item.filename.endswith("/RECORD"):
                        content = "\n".join([*record, f"{item.filename},,", ""]).encode()
                    elif item.filename in {"shoal/__init__.py", f"{new}dist-info/METADATA"}:
                        content = content.replace(__version__.encode(), version.encode(), 1)
                    elif item.filename == "agent/app.py" and ending:
                        content = content.replace(b"\nlog = ", ending.encode() + b"log = ", 1)
                    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
                    record.append(f"{item.filename},sha256={digest.decode().rstrip('=')},")
                    record[-1] += str(len(content))
                    wheel.writestr(item, content)
            target.seek(0)
            return target.read()


def _watch(fleet: Fleet) -> set[str]:
    """States of the device until the rollout ended."""
    states: set[str] = set()
    until = time.monotonic() + LIMIT_S
    while fleet.json("agents", "upgrade", "--status")["outcome"] == "running":
        states.add(_device(fleet).get("state", ""))
        if time.monotonic() > until:
            raise TimeoutError(f"the rollout did not end within {LIMIT_S} s")
    return states


def _ask_until_it_drains(fleet: Fleet) -> bool:
    """One long answer after the other, until one is refused; whether none was cut off."""
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 300, "shoal": {"device": NAME}}
    with fleet.http() as http:
        while (answer := http.post("/v1/completions", json=body)).status_code == 200:
            if answer.json()["choices"][0]["finish_reason"] not in {"stop", "length"}:
                return False
        return bool(answer.json()["error"]["code"] != "device_lost")


def _until_served(fleet: Fleet, began: float) -> float:
    wait_for(f"{NAME} serves", lambda: _serves(fleet), timeout_s=LIMIT_S)
    with fleet.http() as http:
        body = {
            "model": MODEL, "prompt": "a", "max_tokens": 1, "shoal": {"device": NAME},
        }  # fmt: skip
        http.post("/v1/completions", json=body).raise_for_status()
    return round(time.monotonic() - began, 1)


def _phase(fleet: Fleet) -> str:
    (device,) = fleet.json("agents", "upgrade", "--status")["devices"]
    return str(device["phase"])


def _device(fleet: Fleet) -> dict[str, Any]:
    devices = fleet.json("devices", "list")["devices"]
    return next((dict(each) for each in devices if each["name"] == NAME), {})


def _serves(fleet: Fleet) -> bool:
    device = _device(fleet)
    ready = any(model["state"] == "READY" for model in device.get("models", []))
    return device.get("state") == "READY" and ready


def _steps(said: str) -> dict[str, int]:
    """Where the time went, whole seconds, as the install script says it."""
    return {name: int(took) for name, took in re.findall(r"^shoal:   (\w+): (\d+) s$", said, re.M)}


def _shell(line: str, prefix: Path) -> str:
    """What a line that somebody pastes says; RuntimeError with its last words when it fails."""
    own = {"SHOAL_PREFIX": str(prefix), "SHOAL_SERVICE": "none"}
    if os.getuid() == 0:
        own["SHOAL_USER"] = "root"
    kept = {name: v for name, v in os.environ.items() if not name.startswith(("SHOAL_", "RAY_"))}
    done = subprocess.run(
        ["sh", "-c", line], env=kept | own, text=True, capture_output=True, check=False
    )
    print(done.stdout, file=sys.stderr)
    if done.returncode != 0:
        raise RuntimeError(f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
