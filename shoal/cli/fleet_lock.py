"""One supervisor per home: a file lock that the kernel frees when its holder dies."""

from __future__ import annotations

import fcntl
from typing import IO

from shoal.home import Home


class FleetLock:
    """Lock on `run/up.lock`; held by the supervisor for as long as it lives."""

    def __init__(self, home: Home) -> None:
        self._path = home.run_dir / "up.lock"
        self._file: IO[str] | None = None

    def acquire(self) -> bool:
        """Take the lock; False when another process holds it."""
        file = self._path.open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._file = file
        return True

    def release(self) -> None:
        """Give the lock back; does nothing when it is not held."""
        if self._file:
            self._file.close()
            self._file = None

    def is_held_elsewhere(self) -> bool:
        """Whether a supervisor lives for this home."""
        if not self._path.exists():
            return False
        free = self.acquire()
        self.release()
        return not free
