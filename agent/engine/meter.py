"""Clocks, and speed over the last few seconds of work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

# Long enough to smooth single steps, short enough to follow a change of load.
WINDOW_S = 5.0


@dataclass(frozen=True, slots=True)
class Clocks:
    """Sources of time, in seconds: one that never jumps, and Unix time for deadlines."""

    monotonic: Callable[[], float]
    unix: Callable[[], float]


class SpeedMeter:
    """Tokens a second of busy time within the window; 0 when nothing was measured lately."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, int, float]] = deque()  # (end, tokens, seconds)
        self._tokens = 0
        self._seconds = 0.0

    def add(self, num_tokens: int, began_s: float, ended_s: float) -> None:
        """Record a computation of `num_tokens` between two times of one clock."""
        self._samples.append((ended_s, num_tokens, ended_s - began_s))
        self._tokens += num_tokens
        self._seconds += ended_s - began_s
        self._forget(ended_s)

    def rate(self, now_s: float) -> float:
        """Tokens a second of busy time."""
        self._forget(now_s)
        return self._tokens / self._seconds if self._samples and self._seconds > 0 else 0.0

    def _forget(self, now_s: float) -> None:
        while self._samples and self._samples[0][0] < now_s - self._window_s:
            _, tokens, seconds = self._samples.popleft()
            self._tokens -= tokens
            self._seconds -= seconds
