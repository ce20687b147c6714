"""How long to wait before trying again."""

from __future__ import annotations

import random

# Full jitter (AWS Architecture Blog, "Exponential Backoff And Jitter"): a fleet that
# lost its hub at one moment does not come back at one moment.
BASE_S = 0.5
CAP_S = 15.0
# Keeps a peer that refuses at once from being dialled in a tight loop.
FLOOR_S = 0.05


class Backoff:
    """Exponential backoff with full jitter; randomness is passed in."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._num_failures = 0

    def next_delay_s(self) -> float:
        """Count one failure and return the seconds to wait before the next try."""
        ceiling_s = min(CAP_S, BASE_S * 2.0 ** min(self._num_failures, 16))
        self._num_failures += 1
        return max(FLOOR_S, self._rng.uniform(0.0, ceiling_s))

    def soon_s(self) -> float:
        """Seconds to wait when the peer asked to come back soon; counts no failure."""
        return self._rng.uniform(0.2, 1.0)

    def within_s(self, limit_s: float) -> float:
        """Seconds to wait when nothing speaks against a try, spread up to the limit."""
        return self._rng.uniform(0.0, limit_s)

    def reset(self) -> None:
        """Forget earlier failures."""
        self._num_failures = 0
