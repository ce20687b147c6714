"""A limit over time that allows bursts: a bucket that fills steadily and is drawn from."""

from __future__ import annotations


class TokenBucket:
    """Holds up to one minute's worth; starts full. Single-threaded; times in s, any clock.

    So no minute sees more than twice the limit, and no longer time more than the limit and
    one minute's worth. What an amount turned out to be is settled later, so the level may
    fall below zero: a debt that is to be filled up first.
    """

    def __init__(self, per_minute: float, now_s: float) -> None:
        self.per_minute = per_minute
        self._level = per_minute
        self._at_s = now_s

    def wait_s(self, amount: float, now_s: float) -> float:
        """Time until `amount` may be drawn, 0 for now; more than the bucket holds needs it full."""
        self._fill(now_s)
        if self.per_minute <= 0:
            return 60.0
        missing = min(amount, self.per_minute) - self._level
        return max(0.0, missing / self.per_minute * 60.0)

    def draw(self, amount: float) -> None:
        """Take `amount` out, or put back what was too much when it is negative."""
        self._level = min(self.per_minute, self._level - amount)

    def change(self, per_minute: float, now_s: float) -> None:
        """Apply another limit; what was drawn already stays drawn."""
        self._fill(now_s)
        self._level = min(per_minute, self._level + per_minute - self.per_minute)
        self.per_minute = per_minute

    def _fill(self, now_s: float) -> None:
        elapsed_s = max(0.0, now_s - self._at_s)
        self._level = min(self.per_minute, self._level + elapsed_s * self.per_minute / 60.0)
        self._at_s = now_s
