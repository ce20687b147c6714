"""Whether a text depends on batch or cuts on ARM: our attention's NEON path, *emulated*.

    sudo .venv/bin/python -m bench.aarch64_kernel --save       # some ten minutes

The engine is cross-compiled, put into a Debian arm64 root under qemu's user emulation, and asked
what each engine asks at load, with the KV cache in f16 and in q8_0: logits and KV bit for bit, of a
sequence alone and beside another, and of a prompt cut at different places. No fleet, no agent:
`bench.aarch64` has those. Needs what that needs, and leaves what that leaves.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.aarch64 import REPO, RESULTS
from bench.aarch64_root import QEMU_CPU, ArmRoot, missing
from shoal.home import cache_dir
from tests.harness import netlab

KV_TYPES = ("f16", "q8_0")
PLACE = "opt/shoal-kernel"
# What the sources import that the engine's wheel does not bring.
PACKAGES = "grpcio protobuf structlog psutil"


def main() -> int:
    """Command line; 1 when a text depends on anything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, default=cache_dir() / "aarch64-root")
    parser.add_argument("--mirror", default="", help="of Debian; default: debootstrap's own")
    parser.add_argument("--kv-type", nargs="+", choices=KV_TYPES, default=KV_TYPES)
    parser.add_argument("--save", action="store_true", help=f"into {RESULTS.name}")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if reason := missing():
        print(f"skipped: {reason}", file=sys.stderr)
        return 0
    netlab.enter(["-m", "bench.aarch64_kernel", *sys.argv[1:]], network=False)
    root = ArmRoot(options.root)
    root.prepare(options.mirror)
    _install(root)
    measured: dict[str, Any] = {"qemu_cpu": QEMU_CPU}
    for kv_type in options.kv_type:
        flag = "--q8_0" if kv_type == "q8_0" else ""
        done = root.run(
            f"cd /{PLACE} && echo '[]' | bin/python -B aarch64_direct.py model.gguf {flag}"
        )
        told = json.loads(done.stdout.splitlines()[-1])
        measured[kv_type] = {
            name: told[name] for name in ("cut_invariant", "decode_alone_from", "invariance_s")
        }
        measured["system"] = told["system"]
        print(json.dumps({kv_type: measured[kv_type]}), flush=True)
        if options.save:
            _save(measured)
    found = [measured[kv_type] for kv_type in options.kv_type]
    held = all(each["cut_invariant"] and each["decode_alone_from"] is None for each in found)
    return 0 if held else 1


def _save(measured: dict[str, Any]) -> None:
    """Beside what `bench.aarch64` found, and what was measured of other KV types."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept = {name: value for name, value in known.get("invariance", {}).items() if name in KV_TYPES}
    told = {"commit": _commit(), "command": "bench.aarch64_kernel"}
    known["invariance"] = told | kept | measured
    RESULTS.write_text(json.dumps(known, indent=2) + "\n")


def _install(root: ArmRoot) -> None:
    """Sources, model and the cross-compiled engine, in a fresh environment of the root."""
    place = root.folder / PLACE
    shutil.rmtree(place, ignore_errors=True)
    root.run(f"python3 -m venv /{PLACE}")
    for package in ("agent", "shoal"):
        shutil.copytree(REPO / package, place / package)
    shutil.copy(REPO / "bench" / "aarch64_direct.py", place)
    shutil.copy(REPO / "constraints.txt", place)
    build = [sys.executable, str(REPO / "deploy/cross_engine.py")]
    subprocess.run(build, check=True, stdout=sys.stderr)
    wheels = cache_dir().glob("wheels/*-aarch64-*/*.whl")
    wheel = max(wheels, key=lambda file: file.stat().st_mtime)
    shutil.copy(wheel, place)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "SmolLM2-135M-Instruct.Q4_0.gguf"
        requantise = [sys.executable, "-m", "bench.requantise", str(model)]
        subprocess.run(requantise, check=True, capture_output=True)
        shutil.copy(model, place / "model.gguf")
    root.run(f"cd /{PLACE} && bin/pip install -q -c constraints.txt {wheel.name} {PACKAGES}")


def _commit() -> str:
    asked = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(asked, cwd=REPO, capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
