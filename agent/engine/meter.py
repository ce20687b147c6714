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


class ServiceTime:
    """Mean time that a request holds a slot, for Retry-After; starts with a guess."""

    def __init__(self, guess_s: float = 2.0) -> None:
        self._mean_s = guess_s

    def add(self, seconds: float) -> None:
        """Count one request."""
        self._mean_s += 0.2 * (seconds - self._mean_s)

    def retry_after_ms(self, num_waiting: int, slots: int) -> int:
        """When a slot may be free for who comes now, at least half a second."""
        rounds = 1 + num_waiting / max(1, slots)
        return max(500, round(self._mean_s * rounds * 1e3))
