"""The circuit breaker of one endpoint; pure: every call is told the time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """When an endpoint is left alone, and for how long.

    Three failures in a row are hardly chance, and cost three clients one retry each.
    The rest doubles with every failed try after it, so that an endpoint that is gone
    for the night is asked once a minute.
    """

    failures_to_open: int = 3
    first_rest_s: float = 2.0
    max_rest_s: float = 60.0
    # An endpoint may not put itself to rest for longer than this by its Retry-After.
    max_retry_after_s: float = 600.0


class Breaker:
    """Closed: all pass. Open: none until the rest is over. Then one tries, alone.

    Whoever got True of `acquire` must tell the outcome: `succeeded`, `failed`, or
    `released` for one that ended without saying anything of the endpoint.
    """

    def __init__(self, limits: BreakerLimits) -> None:
        self._limits = limits
        self._failures = 0
        self._rest_s = 0.0
        self._rests_until_s = float("-inf")
        self._trying = False

    def acquire(self, now_s: float) -> bool:
        """Whether a request may go now; True while the rest is over is the one try."""
        if now_s < self._rests_until_s:
            return False
        if not self._is_open:
            return True
        if self._trying:
            return False
        self._trying = True
        return True

    def wait_s(self, now_s: float) -> float:
        """Seconds until asking again is worth it; 0: now, or as soon as the try ends."""
        return max(0.0, self._rests_until_s - now_s)

    def succeeded(self) -> None:
        """The endpoint served: closed again."""
        self._failures = 0
        self._rest_s = 0.0
        self._trying = False

    def failed(self, now_s: float) -> None:
        """The endpoint failed by its own fault."""
        self._failures += 1
        self._trying = False
        if self._is_open:
            doubled_s = max(self._limits.first_rest_s, 2 * self._rest_s)
            self._rest_s = min(self._limits.max_rest_s, doubled_s)
            self._rests_until_s = max(self._rests_until_s, now_s + self._rest_s)

    def rate_limited(self, now_s: float, retry_after_s: float) -> None:
        """The endpoint works but wants to be left alone for a while."""
        self._trying = False
        rest_s = min(max(0.0, retry_after_s), self._limits.max_retry_after_s)
        self._rests_until_s = max(self._rests_until_s, now_s + rest_s)

    def released(self) -> None:
        """The request ended without saying anything of the endpoint (its client left)."""
        self._trying = False

    @property
    def _is_open(self) -> bool:
        return self._failures >= self._limits.failures_to_open
