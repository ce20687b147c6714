"""The embedded Redis of shared KV blocks: a cache, so nothing of it is kept or protected.

Devices reach it over TCP on loopback, or over TLS in a fleet that listens beyond this
machine; each as a user of its own that the hub makes. The default user is off. Only the
ACL file outlives the process.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import socket
import ssl
from contextlib import suppress
from pathlib import Path

from shoal.blocks import SHARED_TIER_ADMIN
from shoal.home import Home
from shoal.ports import port_is_free, url_host

# About 180 blocks of the default model; a cache that is full evicts by LRU.
DEFAULT_MAX_MEMORY_MB = 512
# Below Linux's ephemeral range, so that no outgoing connection takes the port meanwhile.
_FIRST_PORT, _LAST_PORT = 20_000, 32_000


def cache_url(port: int, tls_host: str = "") -> str:
    """What devices dial, without credentials; `tls_host`: they do so from other machines."""
    return f"rediss://{url_host(tls_host)}:{port}" if tls_host else f"redis://127.0.0.1:{port}"


def knows_tls(binary: Path) -> bool:
    """Whether this build of Redis has TLS: only such ones know the settings' names."""
    with binary.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return text.find(b"tls-cert-file") >= 0


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


def cache_command(home: Home, binary: Path, port: int, listen: str = "") -> list[str]:
    """Command line of the cache Redis.

    `listen`: an address of this machine where it speaks TLS and nothing else, with the
    certificate in `cache_tls_dir`; empty: on loopback, without TLS.
    """
    address = ["--port", str(port), "--bind", "127.0.0.1"]
    if listen:
        tls = home.cache_tls_dir
        everywhere = listen in ("0.0.0.0", "::")  # noqa: S104 # nosec B104
        address = [
            *("--port", "0", "--tls-port", str(port), "--tls-auth-clients", "no"),
            *("--tls-cert-file", str(tls / "tls.crt"), "--tls-key-file", str(tls / "tls.key")),
            *("--tls-ca-cert-file", str(home.ca_dir / "ca.crt")),
            *("--bind", *([listen] if everywhere else dict.fromkeys(("127.0.0.1", listen)))),
        ]
    return [
        str(binary),
        *address,
        *("--aclfile", str(prepare_acl(home))),
        *("--dir", str(home.redis_dir), "--save", "", "--appendonly", "no", "--daemonize", "no"),
        *("--maxmemory", f"{DEFAULT_MAX_MEMORY_MB}mb", "--maxmemory-policy", "allkeys-lru"),
    ]


def cache_answers(port: int, ca_file: Path | None = None) -> bool:
    """Whether a Redis listens at this port; it asks who we are before it says more.

    `ca_file`: of the authority that vouches for it, where it speaks TLS.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as plain:
            if ca_file is None:
                return _says_who_are_you(plain)
            context = ssl.create_default_context(cafile=str(ca_file))
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                return _says_who_are_you(connection)
    except OSError:
        return False


def _says_who_are_you(connection: socket.socket) -> bool:
    connection.sendall(b"PING\r\n")
    return connection.recv(7).startswith((b"+PONG", b"-NOAUTH"))


def _port_file(home: Home) -> Path:
    return home.redis_dir / "cache.port"


def _write(path: Path, text: str, flag: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
