"""Files that hold secrets: written whole and private, refused when others can read them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class KeyFileError(Exception):
    """A key file cannot be trusted or read; the message names the remedy."""


def write_private(path: Path, content: bytes) -> None:
    """Write a file of mode 0600; a crash leaves the old content or the new one."""
    unfinished = _write_beside(path, content)
    unfinished.replace(path)


def create_private(path: Path, content: bytes) -> bool:
    """Like `write_private`, but only if there is no such file; False when there is one.

    Of several processes that create at once exactly one gets True.
    """
    unfinished = _write_beside(path, content)
    try:
        os.link(unfinished, path)
    except FileExistsError:
        return False
    finally:
        unfinished.unlink()
    return True


def read_private(path: Path) -> bytes:
    """Read a secret; KeyFileError when group or others have any access to it."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            mode = stat.S_IMODE(status.st_mode)
            if mode & _OTHERS:
                raise KeyFileError(
                    f"{path} has mode {mode:04o}: other users can reach this secret;"
                    f" run `chmod 600 {path}`, and replace it if they may have read it"
                )
            if status.st_uid != os.geteuid():
                raise KeyFileError(
                    f"{path} belongs to user id {status.st_uid}, not to this process's user"
                    f" {os.geteuid()}; run `chown` on it, or run as its owner"
                )
            return file.read()
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}") from error


def _write_beside(path: Path, content: bytes) -> Path:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return unfinished
