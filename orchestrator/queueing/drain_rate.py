"""How fast places come free for those who wait."""

from __future__ import annotations

from collections import deque

# Departures over which the pace is measured: about two rounds of a device's slots, since
# requests that began together also end together.
WINDOW = 32
# What the prediction counts for against measured departures, until the window is full.
PRIOR_DEPARTURES = 4.0


class DrainRate:
    """Mean time between departures while somebody waits, predicted at first, then measured."""

    def __init__(self, predicted_gap_ms: float, now_ms: float) -> None:
        self._predicted_gap_ms = predicted_gap_ms
        self._departures: deque[float] = deque(maxlen=WINDOW)
        self._since_ms = now_ms

    def departed(self, now_ms: float) -> None:
        """One request left to be served."""
        if len(self._departures) == WINDOW:
            self._since_ms = self._departures[0]
        self._departures.append(now_ms)

    def gap_ms(self, now_ms: float) -> float:
        """Time from one departure to the next; grows while nothing departs."""
        num = len(self._departures)
        prior = PRIOR_DEPARTURES * (1 - num / WINDOW)
        elapsed_ms = max(0.0, now_ms - self._since_ms)
        predicted_ms = prior * self._predicted_gap_ms
        # Just after a departure nothing of the next gap has passed: no shorter than that.
        return (predicted_ms + elapsed_ms) / max(1.0, prior + num)
