"""Who fails, or is slower than predicted, by the newest outcomes of a lane."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, replace

from orchestrator.config import HealthTerms

# Below these a miss of the prediction is noise that no user notices.
MIN_TTFT_MS = 250.0
MIN_TPOT_MS = 20.0
# Failures within this time are one: a lost connection fails all its requests at once.
BURST_MS = 1_000.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one request ended on a lane; `slowness`: actual ÷ predicted time, None: unknown.

    `slow_known`: slow outcomes in a row before it that its prediction had learned from.
    """

    at_ms: float
    failed: bool
    slowness: float | None = None
    slow_known: int = 0


def slowness(actual_ttft_ms: float, ttft_ms: float, actual_tpot_ms: float, tpot_ms: float) -> float:
    """The worse of the two ratios of actual to predicted; small times count as the minimum."""
    return max(
        actual_ttft_ms / max(ttft_ms, MIN_TTFT_MS), actual_tpot_ms / max(tpot_ms, MIN_TPOT_MS)
    )


class Outcomes:
    """The newest outcomes of one lane, a bounded number."""

    __slots__ = ("_newest", "_terms", "num_finished", "num_slow_in_row")

    def __init__(self, terms: HealthTerms) -> None:
        self._terms = terms
        self._newest: deque[Outcome] = deque(maxlen=terms.outcomes)
        self.num_finished = 0
        self.num_slow_in_row = 0

    def add(self, outcome: Outcome) -> None:
        """Take one more.

        A device that slows down is learned by the estimator and routed around; its slowness
        counts here only where predictions had that chance and are missed still.
        """
        self.num_finished += not outcome.failed
        if outcome.slowness is not None and outcome.slowness > self._terms.slow_factor:
            self.num_slow_in_row += 1
            if outcome.slow_known < self._terms.min_outcomes:
                outcome = replace(outcome, slowness=None)
        elif not outcome.failed:
            self.num_slow_in_row = 0
        last = self._newest[-1] if self._newest else None
        if (
            last is not None
            and last.failed
            and outcome.failed
            and outcome.at_ms < last.at_ms + BURST_MS
        ):
            return
        self._newest.append(outcome)

    def clear(self) -> None:
        """Judge from here on: what came before was paid for."""
        self._newest.clear()

    def failing(self, now_ms: float) -> str:
        """Why the lane is an outlier by its failures; empty: it is not."""
        recent = self._recent(now_ms)
        num_failed = sum(outcome.failed for outcome in recent)
        tail = recent[-self._terms.failed_in_row :]
        if len(tail) == self._terms.failed_in_row and all(outcome.failed for outcome in tail):
            return f"requests failed {len(tail)} times in a row"
        if len(recent) >= self._terms.min_outcomes and num_failed >= self._terms.failed_share * len(
            recent
        ):
            return f"{num_failed} of the last {len(recent)} requests failed"
        return ""

    def slowness(self, now_ms: float) -> float | None:
        """Median of actual ÷ predicted; None: too few outcomes."""
        ratios = [o.slowness for o in self._recent(now_ms) if o.slowness is not None]
        return statistics.median(ratios) if len(ratios) >= self._terms.min_outcomes else None

    def _recent(self, now_ms: float) -> list[Outcome]:
        oldest_ms = now_ms - self._terms.outcomes_ms
        return [outcome for outcome in self._newest if outcome.at_ms >= oldest_ms]
