"""Which drafted tokens stand, and the target's own next token.

Greedy: a draft stands where it is the target's likeliest token. Drawn: rejection
sampling (Leviathan et al., 2023; Chen et al., 2023), after which each token has exactly
the target's distribution, whatever the draft's was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

# One probability a token of the vocabulary.
Probabilities: TypeAlias = NDArray[np.float64]


class DraftError(ValueError):
    """A draft that cannot have been made as it claims."""


@dataclass(frozen=True, slots=True)
class SparseDistribution:
    """The few tokens that a draft was drawn from. Weights sum to 1."""

    ids: NDArray[np.int64]
    weights: NDArray[np.float64]
    # As they were given, before they were divided by their sum.
    told: NDArray[np.float64]

    @classmethod
    def of(cls, ids: Sequence[int], weights: Sequence[float], size: int) -> SparseDistribution:
        """Divide by the sum, as both ends of the wire do. Raises DraftError on nonsense.

        `size`: of the vocabulary.
        """
        tokens = np.asarray(ids, dtype=np.int64)
        values = np.asarray(weights, dtype=np.float64)
        if tokens.size == 0 or tokens.size != values.size:
            raise DraftError("as many weights as tokens are needed, and at least one")
        if tokens.min() < 0 or tokens.max() >= size or np.unique(tokens).size != tokens.size:
            raise DraftError("tokens must be different ones of the vocabulary")
        total = float(values.sum())
        if not np.isfinite(total) or values.min() < 0 or total <= 0:
            raise DraftError("weights must be finite, not negative and not all 0")
        return cls(tokens, values / total, values)

    def probability(self, token: int) -> float:
        """That of one token; 0 for one that cannot be drawn."""
        found = np.flatnonzero(self.ids == token)
        return float(self.weights[found[0]]) if found.size else 0.0

    def draw(self, uniform: float) -> int:
        """The token for a number drawn uniformly from [0, 1)."""
        return int(self.ids[_place(self.weights, uniform)])


@dataclass(frozen=True, slots=True)
class Draft:
    """A drafted token; `drawn_from` None: it was chosen, not drawn."""

    token: int
    drawn_from: SparseDistribution | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """How many leading drafts stand, and the target's own token after them."""

    num_accepted: int
    next_token: int


def judge_greedy(drafts: Sequence[int], likeliest: Sequence[int]) -> Judgement:
    """`likeliest[i]`: the target's choice before draft i; one more than there are drafts."""
    for place, token in enumerate(drafts):
        if token != likeliest[place]:
            return Judgement(place, int(likeliest[place]))
    return Judgement(len(drafts), int(likeliest[len(drafts)]))


def judge_drawn(
    drafts: Sequence[Draft],
    target: Callable[[int], Probabilities],
    uniform: Callable[[], float],
) -> Judgement:
    """`target(i)`: the target's distribution before draft i; asked in order, only as needed.

    `uniform` draws from [0, 1). Raises DraftError for a token that its own distribution
    does not hold.
    """
    for place, draft in enumerate(drafts):
        wanted = target(place)
        if not accepts(draft, wanted, uniform()):
            return Judgement(place, draw(residual(wanted, draft), uniform()))
    return Judgement(len(drafts), draw(target(len(drafts)), uniform()))


def accepts(draft: Draft, target: Probabilities, uniform: float) -> bool:
    """Whether the draft stands: with probability min(1, target / draft)."""
    proposed = 1.0 if draft.drawn_from is None else draft.drawn_from.probability(draft.token)
    if proposed <= 0:
        raise DraftError("the drafted token is not in its distribution")
    return uniform * proposed < float(target[draft.token])


def residual(target: Probabilities, draft: Draft) -> Probabilities:
    """What the target wants beyond what the draft gave: max(0, target - draft), to sum 1."""
    rest = target.copy()
    if draft.drawn_from is None:
        rest[draft.token] = 0.0
    else:
        rest[draft.drawn_from.ids] -= draft.drawn_from.weights
        np.maximum(rest, 0.0, out=rest)
    total = float(rest.sum())
    # Only rounding leaves nothing: then the two are equal, and either may be drawn from.
    return rest / total if total > 0 else target


def draw(probabilities: Probabilities, uniform: float) -> int:
    """The token for a number drawn uniformly from [0, 1)."""
    return _place(probabilities, uniform)


def _place(weights: NDArray[np.float64], uniform: float) -> int:
    sums = np.cumsum(weights)
    place = int(np.searchsorted(sums, uniform * float(sums[-1]), side="right"))
    if place < len(weights):
        return place
    return int(np.flatnonzero(weights)[-1])  # uniform rounded up to the whole sum
