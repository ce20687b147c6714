"""Build the engine for ARM devices on an x86 machine: a device then compiles nothing.

    python deploy/cross_engine.py --features asimddp asimdhp

Effects: a wheel in this user's cache, under the key by which a device's installer asks
for it; `shoal up` serves it from its next start on. Needs the cross compilers of Debian's
g++-aarch64-linux-gnu. The wheel is not proven here: a device decodes with it in a child
process before it uses it, like any other build, and compiles its own where it crashes.

The key names the device's Python and C library. The defaults are Debian 12's; on the
device `python3 build_engine.py --plan` prints the key that it wants.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import platform
import re
import shutil
import sys
import zipfile
from pathlib import Path

from build_engine import EngineBuildError, cache_dir, compile_wheel
from engine_flags import ARM_SUFFIXES, Build, wanted_builds

MACHINE = "aarch64"
TRIPLET = "aarch64-linux-gnu"
# What CMake must be told when it does not compile for the machine it runs on.
CROSS_ARGS = (
    "-DCMAKE_SYSTEM_NAME=Linux",
    f"-DCMAKE_SYSTEM_PROCESSOR={MACHINE}",
    f"-DCMAKE_C_COMPILER={TRIPLET}-gcc",
    f"-DCMAKE_CXX_COMPILER={TRIPLET}-g++",
    "-DLLAVA_BUILD=OFF",  # images: a quarter of the time, and the engine uses none
)


def device_abi(python: str, libc: str) -> str:
    """What `build_engine.abi()` says on the device, e.g. of Python 3.11 and glibc 2.36."""
    return f"cpython-{python.replace('.', '')}-{TRIPLET}-glibc-{libc}"


def cross_build(build: Build, abi: str) -> Path:
    """Compile `build` for the device into the cache, unless it lies there; the wheel."""
    entry = cache_dir() / build.key(MACHINE, abi)
    for wheel in entry.glob("*.whl"):
        return wheel
    for compiler in ("gcc", "g++"):
        if not shutil.which(f"{TRIPLET}-{compiler}"):
            raise EngineBuildError(f"{TRIPLET}-{compiler} is missing: apt install g++-{TRIPLET}")
    scratch = cache_dir() / f"cross-{entry.name}"
    try:
        built = compile_wheel(Build(build.name, (*build.cmake_args, *CROSS_ARGS)), scratch)
        entry.mkdir(parents=True, exist_ok=True)
        return tag_for_device(built, entry)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def tag_for_device(wheel: Path, folder: Path) -> Path:
    """Copy a wheel into `folder` under the device's machine; pip named the one that built it."""
    here, there = f"linux_{platform.machine()}", f"linux_{MACHINE}"
    target = folder / wheel.name.replace(here, there)
    unfinished = folder / "unfinished"
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(unfinished, "w") as new:
        contents = {item.filename: old.read(item) for item in old.infolist()}
        info = next(name.rpartition("/")[0] for name in contents if name.endswith("/WHEEL"))
        tags = contents[f"{info}/WHEEL"].replace(here.encode(), there.encode())
        record = contents[f"{info}/RECORD"].decode()
        digest = base64.urlsafe_b64encode(hashlib.sha256(tags).digest()).rstrip(b"=").decode()
        line = f"{info}/WHEEL,sha256={digest},{len(tags)}"
        record = re.sub(rf"^{re.escape(info)}/WHEEL,.*$", line, record, flags=re.MULTILINE)
        contents |= {f"{info}/WHEEL": tags, f"{info}/RECORD": record.encode()}
        for item in old.infolist():
            new.writestr(item, contents[item.filename], zipfile.ZIP_DEFLATED)
    return unfinished.rename(target)


def main() -> int:
    """Command line; prints the wheel's path."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--features",
        nargs="*",
        default=["asimddp", "asimdhp"],
        choices=[*ARM_SUFFIXES],
        help="the device's, as its /proc/cpuinfo names them; default: Cortex-A76 (Pi 5)",
    )
    parser.add_argument("--python", default="3.11", help="the device's Python [3.11]")
    parser.add_argument("--libc", default="2.36", help="the device's glibc [2.36]")
    options = parser.parse_args()
    build = wanted_builds(MACHINE, frozenset(options.features))[0]
    try:
        print(cross_build(build, device_abi(options.python, options.libc)))
    except (EngineBuildError, OSError) as failure:
        print(f"engine: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
