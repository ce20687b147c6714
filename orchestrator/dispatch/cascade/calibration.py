"""A threshold from a tenant's own traffic, without labels: quantiles of its confidences; pure.

A share s of requests goes on when the threshold is the s-quantile of their confidences.
The threshold comes from one half of the samples and is tried on the other half, which it has
not seen: what it reaches there is what to expect.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.errors import Reason, ShoalError

# Below it the share that a threshold reaches is mostly chance: +-10 points at 100.
MIN_SAMPLES = 100
# Answers as long as this share of all are expected; longer ones are not stopped early.
_LENGTH_QUANTILE = 0.9
# Scores are at most 1: with this threshold every answer goes on.
ABOVE_ANY_SCORE = 1.01
_DAY_S = 86_400.0
# 95 % of a normal distribution.
_Z = 1.96


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of the edge: what is remembered of it. No text, nothing made from text.

    `whole`: it could not have been stopped early, so its score is unbiased. `cost_nanos` and
    `cloud_tokens`: what going on cost; 0 when it did not.
    """

    unix_s: float
    score: float
    num_tokens: int
    escalated: bool
    whole: bool
    cost_nanos: int = 0
    cloud_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Calibration:
    """A threshold and what it does.

    `reached_share` on the half that it was not made from, with the 95 % interval of chance.
    """

    threshold: float
    target_share: float
    reached_share: float
    reached_low: float
    reached_high: float
    expected_tokens: int
    num_samples: int


def calibrate(samples: Sequence[Sample], target_share: float) -> Calibration:
    """The threshold for this share; raises INVALID_ARGUMENT with too few samples."""
    whole = sorted((each for each in samples if each.whole), key=lambda each: each.unix_s)
    if len(whole) < MIN_SAMPLES:
        raise ShoalError(
            Reason.INVALID_ARGUMENT,
            f"{len(whole)} answers of the edge are known in full; a calibration needs "
            f"{MIN_SAMPLES}. Send more traffic through the cascade first.",
            param="policy",
        )
    # Every second one, so that both halves have the same hours and the same changes.
    made_from, tried_on = whole[::2], whole[1::2]
    threshold = share_threshold([each.score for each in made_from], target_share)
    reached = sum(each.score < threshold for each in tried_on) / len(tried_on)
    low, high = wilson(reached, len(tried_on))
    lengths = sorted(each.num_tokens for each in whole)
    return Calibration(
        threshold=threshold,
        target_share=target_share,
        reached_share=reached,
        reached_low=low,
        reached_high=high,
        expected_tokens=lengths[int(_LENGTH_QUANTILE * (len(lengths) - 1))],
        num_samples=len(whole),
    )


def share_threshold(scores: Sequence[float], share: float) -> float:
    """The threshold below which this share of the scores lies.

    Between two neighbours their middle, so that neither is on the edge; 0 for none and
    more than any score can be for all.
    """
    ordered = sorted(scores)
    count = round(share * len(ordered))
    if count <= 0:
        return 0.0
    if share >= 1:
        return ABOVE_ANY_SCORE
    if count >= len(ordered):
        return math.nextafter(ordered[-1], math.inf)
    return (ordered[count - 1] + ordered[count]) / 2


def share_for_budget(samples: Sequence[Sample], per_day: float, *, money: bool) -> float:
    """The share that spends a budget a day (nanos, or tokens), at the pace of the samples.

    Raises INVALID_ARGUMENT when the samples do not tell the pace or the price.
    """
    paid = [s.cost_nanos if money else s.cloud_tokens for s in samples if s.escalated]
    paid = [amount for amount in paid if amount > 0]
    times = [each.unix_s for each in samples]
    span_s = max(times) - min(times) if times else 0.0
    if not paid or span_s <= 0:
        what = "cost" if money else "used"
        raise ShoalError(
            Reason.INVALID_ARGUMENT,
            f"No request of these went on to a priced cloud model, so what one {what} is not "
            "known. Calibrate to a share first, and to a budget after a day of traffic.",
            param="budget",
        )
    requests_per_day = (len(times) - 1) / span_s * _DAY_S
    each = sum(paid) / len(paid)
    return min(1.0, per_day / (requests_per_day * each))


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share seen in `count` draws (Wilson, 1927)."""
    scale = 1 + _Z**2 / count
    centre = (share + _Z**2 / (2 * count)) / scale
    half = _Z / scale * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return max(0.0, centre - half), min(1.0, centre + half)
