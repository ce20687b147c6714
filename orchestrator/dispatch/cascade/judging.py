"""When the edge's answer stands, when it does not, and when that is already plain; pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.dispatch.cascade.confidence import Confidence, TokenFigures

# With fewer what is assumed of any answer (`confidence.PRIOR`) outweighs what was measured.
MIN_TOKENS_IN_PROGRESS = 3


class Why(StrEnum):
    """Why the edge's answer was taken or given up."""

    CONFIDENT = "confident"
    LOW_CONFIDENCE = "low_confidence"  # the whole answer, or what came within the bound
    HOPELESS = "hopeless"  # no end could have lifted it over the threshold
    EDGE_FAILED = "edge_failed"
    NO_EDGE = "no_edge"  # no device is ready for the edge's model
    NO_TARGET = "no_target"  # nobody to hand over to, or the request may not go there
    NOT_MEASURED = "not_measured"  # the device's engine tells no confidence
    SLOW = "slow"  # too little came within the bound to judge by
    ESCALATION_FAILED = "escalation_failed"  # nobody else answered: the edge's stands


@dataclass(frozen=True, slots=True)
class Bar:
    """What an answer is measured by.

    `expected_tokens`: how long answers usually are at most (known from calibration);
    0: unknown, so nothing is stopped early.
    """

    threshold: float
    expected_tokens: int = 0


class Judge:
    """Follows one answer. `settled` once it has decided; then it decides no more."""

    def __init__(self, bar: Bar, max_tokens: int | None, *, stops_early: bool) -> None:
        self.bar = bar
        self.confidence = Confidence()
        self.why: Why | None = None
        self._stops_early = stops_early and bar.expected_tokens > 0
        limit = bar.expected_tokens
        self._last_token = limit if max_tokens is None else min(limit, max_tokens)

    @property
    def may_stop_early(self) -> bool:
        """Whether the answer could have been cut short by `hopeless`."""
        return self._stops_early

    @property
    def stands(self) -> bool:
        """Whether the edge's answer was taken."""
        return self.why in (Why.CONFIDENT, Why.NOT_MEASURED)

    def add(self, token: TokenFigures) -> None:
        """One more token."""
        self.confidence.add(token)

    def hopeless(self) -> bool:
        """Decide against the answer if even a perfect rest of usual length would not do."""
        if self.why is not None or not self._stops_early or not self.confidence.num_tokens:
            return False
        if self.confidence.best_score(self._last_token) >= self.bar.threshold:
            return False
        # Beyond the usual length the rest is unknown: nothing is certain there.
        if self.confidence.num_tokens >= self._last_token:
            return False
        self.why = Why.HOPELESS
        return True

    def decide(self, num_tokens: int) -> Why:
        """Decide by the whole answer; `num_tokens` as counted apart from confidence."""
        measured = self.confidence.num_tokens
        if self.why is None:
            if not measured and (num_tokens or self.bar.threshold <= 0):
                self.why = Why.NOT_MEASURED
            elif not measured:
                self.why = Why.LOW_CONFIDENCE  # it said nothing at all
            elif self.confidence.score >= self.bar.threshold:
                self.why = Why.CONFIDENT
            else:
                self.why = Why.LOW_CONFIDENCE
        return self.why

    def decide_in_progress(self, num_tokens: int) -> Why:
        """Decide by what came within the bound, unless it is too little to tell."""
        measured = self.confidence.num_tokens
        if self.why is None and measured < MIN_TOKENS_IN_PROGRESS and (measured or not num_tokens):
            self.why = Why.SLOW
        return self.decide(num_tokens)

    def told(self) -> dict[str, object]:
        """The values that decide, for answers and records; None: not measured."""
        confidence, means = self.confidence, self.confidence.means
        measured = confidence.num_tokens > 0
        return {
            "confidence": round(confidence.score, 4) if measured else None,
            "threshold": round(self.bar.threshold, 4),
            "measured_tokens": confidence.num_tokens,
            "mean_logprob": round(means.logprob, 4) if measured else None,
            "mean_entropy": round(means.entropy, 4) if measured else None,
            "mean_margin": round(means.margin, 4) if measured else None,
        }

    def handed_over(self, why: Why | None) -> str:
        """Why somebody else answers, as a sentence."""
        if why in (Why.LOW_CONFIDENCE, Why.HOPELESS) and self.confidence.num_tokens:
            score, threshold = self.confidence.score, self.bar.threshold
            return f"The edge's confidence {score:.2f} is below {threshold:.2f} ({why.value})."
        return f"Handed over by the cascade ({why.value if why else 'unknown'})."
