"""The embedded Redis of shared KV blocks: a cache, so nothing of it is kept or protected.

Devices reach it over TCP on loopback, each as a user of its own that the hub makes;
the default user is off. Only the ACL file outlives the process.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path

from shoal.blocks import SHARED_TIER_ADMIN
from shoal.home import Home
from shoal.ports import port_is_free

# About 180 blocks of the default model; a cache that is full evicts by LRU.
DEFAULT_MAX_MEMORY_MB = 512
# Below Linux's ephemeral range, so that no outgoing connection takes the port meanwhile.
_FIRST_PORT, _LAST_PORT = 20_000, 32_000


def cache_url(port: int) -> str:
    """What devices and hub dial, without credentials."""
    return f"redis://127.0.0.1:{port}"


def choose_cache_port(home: Home) -> int:
    """The port of the last run while it is free, else a new one; devices remember it."""
    last = last_cache_port(home)
    if last is not None and port_is_free(last):
        return last
    choices = (secrets.randbelow(_LAST_PORT - _FIRST_PORT) + _FIRST_PORT for _ in range(200))
    port = next(port for port in choices if port_is_free(port))
    _port_file(home).write_text(str(port), encoding="utf-8")
    return port


def last_cache_port(home: Home) -> int | None:
    """The port that was chosen last; None before the first start."""
    try:
        return int(_port_file(home).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def prepare_acl(home: Home) -> Path:
    """Write the ACL file: the administrator, no default user, devices as they were.

    The administrator's password is made at the first start (mode 0600).
    """
    password_file = home.cache_admin_file
    password_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        _write(password_file, secrets.token_hex(32), os.O_EXCL)
    digest = hashlib.sha256(password_file.read_text(encoding="utf-8").strip().encode())
    path = home.redis_dir / "cache.acl"
    devices: list[str] = []
    with suppress(FileNotFoundError):
        lines = path.read_text(encoding="utf-8").splitlines()
        devices = [line for line in lines if line.startswith("user device-")]
    rules = ["user default off", f"user {SHARED_TIER_ADMIN} on #{digest.hexdigest()} ~* &* +@all"]
    _write(path, "\n".join([*rules, *devices]) + "\n", os.O_TRUNC)
    return path


def cache_command(home: Home, binary: Path, port: int) -> list[str]:
    """Command line of the cache Redis."""
    return [
        str(binary),
        *("--port", str(port), "--bind", "127.0.0.1", "--aclfile", str(prepare_acl(home))),
        *("--dir", str(home.redis_dir), "--save", "", "--appendonly", "no", "--daemonize", "no"),
        *("--maxmemory", f"{DEFAULT_MAX_MEMORY_MB}mb", "--maxmemory-policy", "allkeys-lru"),
    ]


def cache_answers(port: int) -> bool:
    """Whether a Redis listens at this port; it asks who we are before it says more."""
    with socket.socket() as connection:
        connection.settimeout(1)
        try:
            connection.connect(("127.0.0.1", port))
            connection.sendall(b"PING\r\n")
            return connection.recv(7).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


def _port_file(home: Home) -> Path:
    return home.redis_dir / "cache.port"


def _write(path: Path, text: str, flag: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
