"""What `shoal doctor` looks at; each check returns findings and changes nothing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from shoal.cli import cache_server, redis_server
from shoal.cli.fleet_file import FleetState, read_record
from shoal.cli.output import bytes_text
from shoal.home import Home
from shoal.ports import another_port, bind_failure

SELF_TEST_LIMIT_S = 120
RAY_IMPORT_LIMIT_S = 60
# The default model, its caches and Ray's own processes fit; a few GB more is comfort.
MIN_MEMORY_BYTES = 2_000_000_000
MIN_DISK_BYTES = 2_000_000_000


class Verdict(StrEnum):
    """How serious a finding is; only FAIL makes the doctor's exit code non-zero."""

    OK = "ok"
    NOTE = "note"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def check_environment() -> list[Finding]:
    """Python and the distributions that the parts need."""
    python = Finding("python", Verdict.OK, f"{platform.python_version()} at {sys.executable}")
    return [
        python,
        *(_distribution(name) for name in ("shoal", "grpcio", "llama-cpp-python", "ray")),
    ]


def _distribution(name: str) -> Finding:
    try:
        return Finding(name, Verdict.OK, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        if name == "ray":
            detail = "not installed: this machine can be a device, not an orchestrator"
            return Finding(
                name, Verdict.NOTE, detail, "make setup, or pip install 'shoal[orchestrator]'"
            )
        return Finding(name, Verdict.FAIL, "not installed", "Run `make setup`.")


def check_engine() -> list[Finding]:
    """Decode in a child process, and say which instruction sets the library uses."""
    findings = []
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and re.search(r"\bamx_tile\b", cpuinfo.read_text()):
        detail = "this CPU reports AMX; our builds leave it out, since it crashes under hypervisors"
        findings.append(Finding("amx", Verdict.NOTE, detail))
    remedy = 'make engine CMAKE_ARGS="-DGGML_NATIVE=OFF" builds one with fewer instruction sets.'
    command = [sys.executable, "-m", "agent.llama.probe"]
    try:
        probe = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=SELF_TEST_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        detail = f"no token within {SELF_TEST_LIMIT_S} s"
        return [*findings, Finding("engine self-test", Verdict.FAIL, detail, remedy)]
    if probe.returncode == 0:
        result = json.loads(probe.stdout.splitlines()[-1])
        used = re.findall(r"([A-Z0-9_]+) = 1", result["system"])
        detail = f"decoded {result['num_tokens']} tokens; uses {', '.join(used)}"
        return [*findings, Finding("engine self-test", Verdict.OK, detail)]
    if probe.returncode < 0:
        detail = f"the library crashed with {signal.Signals(-probe.returncode).name}"
        return [*findings, Finding("engine self-test", Verdict.FAIL, detail, remedy)]
    last = (probe.stderr.strip().splitlines() or ["no message"])[-1]
    return [*findings, Finding("engine self-test", Verdict.FAIL, last, "Run `make setup`.")]


def check_redis(home: Home) -> list[Finding]:
    """A Redis binary, and the running one's answer."""
    binary = redis_server.find_redis_binary()
    if binary is None:
        remedy = "Debian: apt install redis-server; else pip install 'shoal[embedded]'."
        return [Finding("redis", Verdict.FAIL, "no redis-server found", remedy)]
    command = [str(binary), "--version"]
    shown = subprocess.run(command, check=False, capture_output=True, text=True, timeout=10)
    version = re.search(r"v=(\S+)", shown.stdout)
    findings = [Finding("redis", Verdict.OK, f"{version[1] if version else '?'} at {binary}")]
    record = read_record(home)
    if record and record.state in (FleetState.STARTING, FleetState.RUNNING):
        alive = redis_server.answers(redis_server.state_socket(home))
        verdict = Verdict.OK if alive else Verdict.FAIL
        detail = "the fleet's Redis answers" if alive else "the fleet's Redis does not answer"
        remedy = (
            "" if alive else f"See {home.logs_dir / 'redis.log'}; `shoal down`, then `shoal up`."
        )
        findings.append(Finding("redis state", verdict, detail, remedy))
        findings.append(_check_cache(home))
    return findings


def _check_cache(home: Home) -> Finding:
    """The Redis of shared KV blocks; a fleet works without it, only slower."""
    port = cache_server.last_cache_port(home)
    ca_file = home.ca_dir / "ca.crt"
    if port is not None and (
        cache_server.cache_answers(port)
        or (ca_file.exists() and cache_server.cache_answers(port, ca_file))
    ):
        return Finding("redis cache", Verdict.OK, "the Redis of shared KV blocks answers")
    detail = "the Redis of shared KV blocks does not answer: devices share no prefixes"
    return Finding("redis cache", Verdict.NOTE, detail, f"See {home.logs_dir / 'cache.log'}.")


def check_ray() -> list[Finding]:
    """Import Ray Serve in a child, so that this process stays small."""
    if importlib.util.find_spec("ray") is None:
        return []
    command = [sys.executable, "-c", "import ray.serve, ray; print(ray.__version__)"]
    try:
        child = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=RAY_IMPORT_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        detail = f"import took over {RAY_IMPORT_LIMIT_S} s"
        return [
            Finding("ray serve", Verdict.FAIL, detail, "Is the disk or the machine overloaded?")
        ]
    if child.returncode == 0:
        return [Finding("ray serve", Verdict.OK, "imports")]
    last = (child.stderr.strip().splitlines() or ["no message"])[-1]
    return [Finding("ray serve", Verdict.FAIL, last, "make clean && make setup")]


def check_port(home: Home, port: int) -> list[Finding]:
    """Whether the gateway's port is free, or held by this home's fleet."""
    record = read_record(home)
    if record and record.supervisor.find():
        return [Finding("port", Verdict.OK, f"{record.port} is this fleet's own")]
    if (failure := bind_failure(port)) is not None:
        remedy = f"shoal up --port {another_port(port)}"
        return [Finding("port", Verdict.FAIL, f"{port}: {failure}", remedy)]
    return [Finding("port", Verdict.OK, f"{port} is free")]


def check_machine(home: Home) -> list[Finding]:
    """Memory, swap, and disk below the state directory."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    existing = next(each for each in (home.path, *home.path.parents) if each.exists())
    free = shutil.disk_usage(existing).free
    findings = [
        _at_least("memory available", memory.available, MIN_MEMORY_BYTES, "End other programs."),
        _at_least("disk free", free, MIN_DISK_BYTES, f"Make room below {existing}."),
    ]
    if swap.used:
        detail = f"{bytes_text(swap.used)} in use: a KV cache in swap halves the speed or worse"
        remedy = "Use a smaller model, fewer slots or a shorter context."
        findings.append(Finding("swap", Verdict.NOTE, detail, remedy))
    else:
        findings.append(Finding("swap", Verdict.OK, "none in use"))
    return findings


def _at_least(name: str, have: int, want: int, remedy: str) -> Finding:
    if have >= want:
        return Finding(name, Verdict.OK, bytes_text(have))
    return Finding(name, Verdict.FAIL, f"{bytes_text(have)}; needs {bytes_text(want)}", remedy)


def check_home(home: Home) -> list[Finding]:
    """The state directory and what it records about a fleet that failed."""
    findings = [Finding("state directory", Verdict.OK, str(home.path))]
    if home.path.exists() and home.path.stat().st_mode & 0o77:
        detail = f"{home.path} can be read by other users; it holds keys"
        findings = [Finding("state directory", Verdict.FAIL, detail, f"chmod 700 {home.path}")]
    record = read_record(home)
    if record and record.error:
        remedy = f"The logs are in {home.logs_dir}; `shoal down` clears this."
        findings.append(Finding("last fleet", Verdict.FAIL, record.error, remedy))
    return findings
