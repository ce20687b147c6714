"""The two clocks that the hub passes to its cores."""

from __future__ import annotations

import time


class Clock:
    """Real time; tests pass another one."""

    def monotonic_ms(self) -> float:
        """For intervals: never goes back."""
        return time.monotonic() * 1_000

    def unix_ms(self) -> int:
        """For stamps that others read."""
        return time.time_ns() // 1_000_000
