"""The best that a linear predictor can do on given answers, fitted after the event.

It tells what of a prediction's error is the predictor's, and what is chance and the
machine: no linear function of the same values comes closer to these very answers.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 50
# Relative residuals below it weigh no more.
_LEAST = 0.02


@dataclass(frozen=True, slots=True)
class Served:
    """One answered request; times in ms of the client's clock, tokens as the engine told."""

    device: str
    placed_ms: float
    ttft_ms: float
    tpot_ms: float
    total_ms: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    @property
    def first_ms(self) -> float:
        """When its first token came."""
        return self.placed_ms + self.ttft_ms

    @property
    def ended_ms(self) -> float:
        """When it ended."""
        return self.placed_ms + self.total_ms

    @property
    def own_tokens(self) -> int:
        """Prompt tokens that were computed for it."""
        return self.prompt_tokens - self.cached_tokens


def least_relative_error(
    features: Sequence[Sequence[float]], actual: Sequence[float]
) -> list[float]:
    """Fitted values of the linear function with the least mean |predicted - actual| / actual."""
    x, y = np.asarray(features, dtype=float), np.asarray(actual, dtype=float)
    relative: NDArray[np.float64] = x / y[:, None]
    weights = np.ones(len(y))
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        found = np.linalg.lstsq(relative * root[:, None], root, rcond=None)[0]
        weights = 1.0 / np.maximum(np.abs(relative @ found - 1.0), _LEAST)
    return [float(value) for value in x @ found]


def median_error(predicted: Sequence[float], actual: Sequence[float]) -> float:
    """Median of |predicted - actual| / actual."""
    return statistics.median(abs(p - a) / a for p, a in zip(predicted, actual, strict=True))


def oracle(served: Sequence[Served]) -> dict[str, dict[str, float]]:
    """By figure, the median errors of `constant`, `oracle` and `hindsight`."""
    at_placement = [_known_at_placement(one, served) for one in served]
    in_hindsight = [
        [*known, *_known_afterwards(one, served)]
        for one, known in zip(served, at_placement, strict=True)
    ]
    actuals = {
        "ttft_ms": [one.ttft_ms for one in served],
        "tpot_ms": [one.tpot_ms for one in served],
    }
    return {
        figure: {
            name: round(median_error(least_relative_error(features, actual), actual), 3)
            for name, features in (
                ("constant", [[1.0]] * len(served)),
                ("oracle", at_placement),
                ("hindsight", in_hindsight),
            )
        }
        for figure, actual in actuals.items()
    }


def _known_at_placement(one: Served, served: Sequence[Served]) -> list[float]:
    """Its length, the requests on its device, and their prompts not computed yet."""
    there = [
        other
        for other in served
        if other is not one
        and other.device == one.device
        and other.placed_ms <= one.placed_ms < other.ended_ms
    ]
    ahead = sum(other.own_tokens for other in there if other.first_ms > one.placed_ms)
    running, own = len(there), one.own_tokens
    return [1.0, own, running, ahead, own * running, ahead / one.completion_tokens]


def _known_afterwards(one: Served, served: Sequence[Served]) -> list[float]:
    """Others' mean number, and prompt tokens a token of its own, while it generated."""
    spent_ms = max(1.0, one.ended_ms - one.first_ms)
    others, prompts = 0.0, 0.0
    for other in served:
        if other is one or other.device != one.device:
            continue
        both_ms = min(one.ended_ms, other.ended_ms) - max(one.first_ms, other.first_ms)
        others += max(0.0, both_ms) / spent_ms
        prefill_ms = min(one.ended_ms, other.first_ms) - max(one.first_ms, other.placed_ms)
        if prefill_ms > 0:
            prompts += other.own_tokens * prefill_ms / max(1.0, other.ttft_ms)
    return [others, prompts / one.completion_tokens]
