"""From the model's figures of each token to one confidence of an answer; pure.

The score lies between 0 and 1: the mean of three parts, each of which is 1 for a model
without any doubt:

- exp(mean log-probability), the geometric mean of the sampled tokens' probabilities;
- exp(-mean entropy), one over the number of tokens that were about equally likely;
- the mean margin between the likeliest token and the second.

Length-aware in two ways. The n-th token counts 1 / (1 + n / 4): what is asked for comes
early, and a long, fluent end would else hide a guess at the beginning. And two tokens' worth
of a middling answer is added, so that one sure token is not taken for a sure answer.
Both constants, and the mean of three, were chosen on half of the questions in
`bench/data/cascade_questions.tsv`; docs/cascade.md has what the other half says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

# Of tokens: where a token counts half of the first.
HALF_WEIGHT_TOKENS = 4.0
# What is known of an answer before its first token, and how many tokens it counts.
PRIOR_WEIGHT = 2.0


class TokenFigures(NamedTuple):
    """How sure the model was of one token: nats, nats, and a difference of probabilities."""

    logprob: float
    entropy: float
    margin: float


PRIOR = TokenFigures(-0.4, 0.8, 0.5)
# As sure as a model ever is: what the rest of an answer can at best be.
SUREST = TokenFigures(0.0, 0.0, 1.0)


def token_weight(position: int) -> float:
    """How much the token at this place (from 0) counts."""
    return 1.0 / (1.0 + position / HALF_WEIGHT_TOKENS)


@dataclass(frozen=True, slots=True)
class Means:
    """Plain means over the tokens so far, for people to read."""

    logprob: float
    entropy: float
    margin: float


class Confidence:
    """Grows token by token; `score` is that of what has come so far."""

    __slots__ = ("_plain", "_total", "_weight", "num_tokens")

    def __init__(self) -> None:
        self.num_tokens = 0
        self._weight = PRIOR_WEIGHT
        self._total = [PRIOR_WEIGHT * value for value in PRIOR]
        self._plain = [0.0, 0.0, 0.0]

    def add(self, token: TokenFigures) -> None:
        """Count one more token; figures that are no numbers count as full doubt."""
        weight = token_weight(self.num_tokens)
        for index, value in enumerate(token):
            known = value if math.isfinite(value) else _DOUBT[index]
            self._total[index] += weight * known
            self._plain[index] += known
        self._weight += weight
        self.num_tokens += 1

    @property
    def score(self) -> float:
        """Between 0 and 1."""
        return _score(self._total, self._weight)

    def best_score(self, num_tokens: int) -> float:
        """The score if all tokens from here to `num_tokens` were as sure as can be."""
        rest = sum(token_weight(place) for place in range(self.num_tokens, num_tokens))
        total = [had + rest * sure for had, sure in zip(self._total, SUREST, strict=True)]
        return _score(total, self._weight + rest)

    @property
    def means(self) -> Means:
        """Plain means; zeros before the first token."""
        count = max(1, self.num_tokens)
        return Means(*(value / count for value in self._plain))


_DOUBT = TokenFigures(-20.0, 10.0, 0.0)


def _score(total: list[float], weight: float) -> float:
    logprob, entropy, margin = (value / weight for value in total)
    score = (math.exp(min(0.0, logprob)) + math.exp(-max(0.0, entropy)) + margin) / 3.0
    return min(1.0, max(0.0, score))
