"""The disk tier: one sealed block, whole or partial, a file, found again after a restart by a scan.

The file's name is the block's hash and its content is sealed, so a torn, flipped
or foreign file is detected when it is opened; nothing here needs an fsync for
safety, a lost write is only a block to compute again.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from shoal.blocks import HASH_BYTES, BlockHash

_SUFFIX = ".kv"
_TEMPORARY = ".tmp"
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One block file as the scan finds it."""

    block: BlockHash
    num_bytes: int


class DiskTier:
    """Files of one model's blocks in a directory of their own. Blocking; any thread.

    Keeps no index and no budget: the ledger does, so that there is one book.
    """

    def __init__(self, directory: Path) -> None:
        """Make the directory (mode 0700) and hold it until `close` or the process's end.

        Raises OSError when that fails, BlockingIOError when another holds it: two
        books over the same files would delete each other's.
        """
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Let go of the directory; once, when no thread uses it any more."""
        os.close(self._lock)

    def scan(self, is_size: Callable[[int], bool]) -> tuple[StoredFile, ...]:
        """Files of a right size, unused for longest first; deletes everything torn or alien."""
        found: list[tuple[float, StoredFile]] = []
        for entry in self._entries():
            block = _block_of(entry.name)
            stat = entry.stat(follow_symlinks=False)
            if block is None or not is_size(stat.st_size):
                if entry.name.endswith((_SUFFIX, _TEMPORARY)):
                    Path(entry.path).unlink(missing_ok=True)
                continue
            found.append((stat.st_mtime, StoredFile(block, stat.st_size)))
        return tuple(stored for _, stored in sorted(found, key=lambda item: item[0]))

    def write(self, block: BlockHash, sealed: bytes) -> bool:
        """Store a sealed block whole or not at all; False (and logged) when the disk refuses."""
        path = self._path(block)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
        try:
            path.parent.mkdir(exist_ok=True, mode=0o700)
            temporary.write_bytes(sealed)
            temporary.replace(path)
        except OSError as error:
            log.warning("kv_disk_write_failed", errno=error.errno)
            with suppress(OSError):  # a part that stays is deleted by the next scan
                temporary.unlink()
            return False
        return True

    def read(self, block: BlockHash) -> bytes | None:
        """The sealed block, its file marked as used; None when it is gone or unreadable."""
        path = self._path(block)
        try:
            sealed = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("kv_disk_read_failed", errno=error.errno)
            return None
        return sealed

    def size(self, block: BlockHash) -> int:
        """Bytes of a block's file; 0 when it is gone."""
        try:
            return self._path(block).stat().st_size
        except OSError:
            return 0

    def read_head(self, block: BlockHash, num_bytes: int) -> bytes | None:
        """The file's first bytes, not marked as used; None when they are not there."""
        try:
            with self._path(block).open("rb") as file:
                head = file.read(num_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("kv_disk_read_failed", errno=error.errno)
            return None
        return head if len(head) == num_bytes else None

    def delete(self, block: BlockHash) -> None:
        """Remove a block's file, if it is there."""
        try:
            self._path(block).unlink(missing_ok=True)
        except OSError as error:
            log.warning("kv_disk_delete_failed", errno=error.errno)

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        for fan in os.scandir(self._directory):
            if fan.is_dir(follow_symlinks=False):
                yield from (e for e in os.scandir(fan.path) if e.is_file(follow_symlinks=False))

    def _path(self, block: BlockHash) -> Path:
        name = block.hex()
        return self._directory / name[:2] / (name + _SUFFIX)


def _block_of(name: str) -> BlockHash | None:
    stem = name.removesuffix(_SUFFIX)
    if stem == name or len(stem) != 2 * HASH_BYTES:
        return None
    try:
        return BlockHash(bytes.fromhex(stem))
    except ValueError:
        return None
