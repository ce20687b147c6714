"""What became of one policy's requests, for metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_STEPS = 10


@dataclass(slots=True)
class Totals:
    """Counts since the gateway's start."""

    # By (decision, reason).
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    discarded_tokens: int = 0
    confidence_sum: float = 0.0
    _steps: Counter[int] = field(default_factory=Counter)

    def saw(self, score: float) -> None:
        """Count one confidence."""
        self.confidence_sum += score
        self._steps[min(_STEPS - 1, int(score * _STEPS))] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as Prometheus has them."""
        rows: list[tuple[str, float]] = []
        count = 0
        for step in range(_STEPS):
            count += self._steps[step]
            rows.append((f"{(step + 1) / _STEPS:g}", count))
        rows.append(("+Inf", count))
        return rows
