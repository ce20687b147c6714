"""What is known of the link to the shared tier: is it up, how fast, how much may be used.

Pure: times are passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# Weight of the newest sample in a moving mean.
_NEW_WEIGHT = 0.3


class BreakerState(StrEnum):
    """Closed: in use. Open: not in use until a probe in the background succeeds."""

    CLOSED = "closed"
    OPEN = "open"


class Breaker:
    """Opens after failures in a row, or at once when told; only a probe closes it.

    No request ever pays for finding out whether the tier is back.
    """

    def __init__(
        self, *, failures_to_open: int = 2, first_wait_s: float = 1.0, max_wait_s: float = 60.0
    ) -> None:
        self.state = BreakerState.CLOSED
        self._failures_to_open = failures_to_open
        self._first_wait_s = first_wait_s
        self._max_wait_s = max_wait_s
        self._failures = 0
        self._wait_s = first_wait_s
        self._probe_at_s = 0.0
        self._probing = False

    def success(self) -> None:
        """An operation, or the probe, came back well.

        While open only a probe counts: an answer that arrived too late proves nothing.
        """
        if self.state is BreakerState.OPEN and not self._probing:
            return
        self.state = BreakerState.CLOSED
        self._failures = 0
        self._wait_s = self._first_wait_s
        self._probing = False

    def failure(self, now_s: float, *, hung: bool = False) -> None:
        """An operation failed. One that hung opens at once: the next would cost as much."""
        self._failures += 1
        if self.state is BreakerState.OPEN:
            if self._probing:
                self._probing = False
                self._wait_s = min(2 * self._wait_s, self._max_wait_s)
                self._probe_at_s = now_s + self._wait_s
        elif hung or self._failures >= self._failures_to_open:
            self.state = BreakerState.OPEN
            self._probe_at_s = now_s + self._wait_s

    def take_probe(self, now_s: float) -> bool:
        """True once a wait: the caller must probe and report success or failure."""
        due = self.state is BreakerState.OPEN and not self._probing and now_s >= self._probe_at_s
        self._probing = self._probing or due
        return due


@dataclass(slots=True)
class Speed:
    """Moving mean of a transfer speed; None before the first sample."""

    bytes_per_s: float | None = None

    def sample(self, num_bytes: int, seconds: float) -> None:
        """Add one measured transfer; one that took no measurable time is ignored."""
        if num_bytes <= 0 or seconds <= 0:
            return
        new = num_bytes / seconds
        old = self.bytes_per_s
        self.bytes_per_s = new if old is None else old + _NEW_WEIGHT * (new - old)


class BandwidthBudget:
    """A token bucket over bytes, one second deep; a rate of 0 means no limit."""

    def __init__(self, bytes_per_s: int, now_s: float) -> None:
        self._rate = bytes_per_s
        self._credit = float(bytes_per_s)
        self._at_s = now_s

    def wait_s(self, num_bytes: int, now_s: float) -> float:
        """Book a transfer; how long to wait before it starts."""
        if self._rate == 0:
            return 0.0
        elapsed = max(0.0, now_s - self._at_s)
        self._credit = min(float(self._rate), self._credit + elapsed * self._rate) - num_bytes
        self._at_s = now_s
        return max(0.0, -self._credit / self._rate)
