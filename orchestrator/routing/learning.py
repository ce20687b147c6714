"""Robust running estimates: one outlier hardly moves them, a lasting change soon does."""

from __future__ import annotations

import math
from collections import deque

# Weight of one observation in ordinary times and during a lasting change.
ALPHA = 0.2
ALPHA_CHANGE = 0.5
# An observation further than this from the estimate (log ratio; a factor of 1.35) is
# suspicious: it is clamped, and the third in a row on one side is a lasting change.
CLAMP_LOG = 0.3
CHANGE_CLAMP_LOG = 1.5
CHANGE_AFTER = 3


class LearnedRatio:
    """Running mean of log(actual / predicted), as a factor on predictions; starts at 1."""

    __slots__ = ("_log", "_streak", "num_observations", "value")

    def __init__(self) -> None:
        self._log = 0.0
        self._streak = 0
        self.num_observations = 0
        self.value = 1.0

    def observe(self, actual: float, predicted: float) -> None:
        """Take one outcome; figures that are not positive and finite say nothing."""
        if not (0 < actual < math.inf and 0 < predicted < math.inf):
            return
        step = math.log(actual / predicted) - self._log
        if abs(step) <= CLAMP_LOG:
            self._streak = 0
        else:
            side = 1 if step > 0 else -1
            self._streak = self._streak + side if self._streak * side > 0 else side
        changed = abs(self._streak) >= CHANGE_AFTER
        clamp = CHANGE_CLAMP_LOG if changed else CLAMP_LOG
        alpha = ALPHA_CHANGE if changed else ALPHA
        if self.num_observations == 0 and not changed:
            # The seed is only the device's own short measurement: trust a first outcome more.
            alpha = ALPHA_CHANGE
        self._log += alpha * max(-clamp, min(clamp, step))
        self.num_observations += 1
        self.value = math.exp(self._log)

    def observe_within(self, actual: float, predicted: tuple[float, float]) -> None:
        """Take an outcome whose prediction is only known to be between two figures.

        It says nothing while the estimate fits one between, else what the nearer one says.
        """
        low, high = predicted
        fitting = actual / self.value
        if low < high and low <= fitting <= high:
            return
        self.observe(actual, low if fitting < low else high)


class LearnedQuotient:
    """A quotient of two growing sums (tokens per byte), the past fading with each observation."""

    __slots__ = ("_denominator", "_numerator")

    # What one observation leaves of the past.
    KEEP = 0.95

    def __init__(self, seed: float, seed_weight: float) -> None:
        self._numerator = seed * seed_weight
        self._denominator = seed_weight

    @property
    def value(self) -> float:
        """The current quotient."""
        return self._numerator / self._denominator

    def observe(self, numerator: float, denominator: float) -> None:
        """Take one pair; a denominator that is not positive says nothing."""
        if denominator <= 0 or numerator < 0:
            return
        self._numerator = self._numerator * self.KEEP + numerator
        self._denominator = self._denominator * self.KEEP + denominator


class LearnedLine:
    """y = offset + slope * x, both at least 0, by least relative error, the past fading."""

    __slots__ = ("_s0", "_sx", "_sxx", "_sxy", "_sy", "offset", "slope")

    # What one observation leaves of the past.
    KEEP = 0.97
    # How much is lost by an offset of 1 against a relative error of 1: so that points of
    # one x are put down to the slope.
    _OFFSET_LOSS = 1e-5

    def __init__(self, slope: float, at: float, weight: float) -> None:
        """Start from the slope, held like `weight` observations at x = `at`."""
        self._s0 = self._sx = self._sxx = self._sxy = self._sy = 0.0
        self.offset, self.slope = 0.0, slope
        self._add(at, slope * at, weight)

    def __call__(self, x: float) -> float:
        """The y to expect."""
        return self.offset + self.slope * x

    def observe(self, x: float, y: float) -> None:
        """Take one point; figures that are not positive say nothing."""
        if not (x > 0 and y > 0):
            return
        for name in ("_s0", "_sx", "_sxx", "_sxy", "_sy"):
            setattr(self, name, getattr(self, name) * self.KEEP)
        self._add(x, y, 1.0)
        s0 = self._s0 + self._OFFSET_LOSS
        offset = (self._sy * self._sxx - self._sx * self._sxy) / (s0 * self._sxx - self._sx**2)
        self.offset = max(0.0, offset)
        # Without an offset below 0 the slope is that of a line through the origin.
        self.slope = max(0.0, (self._sxy - self.offset * self._sx) / self._sxx)

    def _add(self, x: float, y: float, weight: float) -> None:
        weight /= y * y
        self._s0 += weight
        self._sx += weight * x
        self._sxx += weight * x * x
        self._sxy += weight * x * y
        self._sy += weight * y


class LearnedScale:
    """A factor up to 1 by which predictions' errors are least, as shares of the actual figures.

    It is below 1 where a few figures lie far beyond the rest, which a mean follows.
    """

    __slots__ = ("_down", "_up", "value")

    KEEP = 0.95
    # Relative errors below it count alike, greater ones for less.
    _LEAST_ERROR = 0.3
    # Weight of the belief that predictions are right as they are, at first.
    _SEED_WEIGHT = 3.0

    def __init__(self) -> None:
        self._up = self._down = self._SEED_WEIGHT
        self.value = 1.0

    def observe(self, actual: float, predicted: float) -> None:
        """Take one outcome, `predicted` without the factor; figures not positive say nothing."""
        if not (0 < actual < math.inf and 0 < predicted < math.inf):
            return
        share = predicted / actual
        weight = 1 / max(self._LEAST_ERROR, abs(self.value * share - 1))
        self._up = self._up * self.KEEP + weight * share
        self._down = self._down * self.KEEP + weight * share * share
        self.value = min(1.0, self._up / self._down)


class LearnedSpread:
    """How far actual figures went beyond predicted ones of late."""

    __slots__ = ("_ratios", "upper")

    WINDOW = 48
    # Observations before it says anything.
    LEAST = 16
    # Share of the last observations that were within `upper` times the prediction.
    SHARE = 0.95

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=self.WINDOW)
        # At least 1; None: too little was seen.
        self.upper: float | None = None

    def observe(self, actual: float, predicted: float) -> None:
        """Take one outcome; figures that are not positive and finite say nothing."""
        if not (0 < actual < math.inf and 0 < predicted < math.inf):
            return
        self._ratios.append(actual / predicted)
        num = len(self._ratios)
        if num >= self.LEAST:
            self.upper = max(1.0, sorted(self._ratios)[min(num - 1, int(self.SHARE * num))])
