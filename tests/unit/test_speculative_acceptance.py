from __future__ import annotations

import numpy as np
import pytest

from agent.speculative.acceptance import (
    Draft,
    DraftError,
    SparseDistribution,
    judge_drawn,
    judge_greedy,
    residual,
)

SIZE = 12
# Critical values of chi-squared at p = 0.01 for 11 and 143 degrees of freedom.
CRITICAL_11, CRITICAL_143 = 24.72, 186.4


def distribution(seed: int, sharpness: float = 1.0) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=SIZE) * sharpness
    weights = np.exp(logits)
    return weights / weights.sum()


def few(probabilities: np.ndarray, count: int) -> SparseDistribution:
    ids = np.argsort(-probabilities)[:count]
    return SparseDistribution.of(ids.tolist(), probabilities[ids].tolist(), SIZE)


def chi_squared(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_greedy_stands_until_the_target_would_have_said_something_else() -> None:
    assert judge_greedy([1, 2, 3], [1, 2, 9, 4]).num_accepted == 2
    assert judge_greedy([1, 2, 3], [1, 2, 9, 4]).next_token == 9
    assert judge_greedy([1, 2], [1, 2, 7]).next_token == 7
    assert judge_greedy([], [5]).next_token == 5


@pytest.mark.parametrize("count", [2, 5, SIZE])
def test_first_token_has_the_targets_distribution_whatever_the_draft(count: int) -> None:
    target, proposed = distribution(1), few(distribution(2), count)
    rng = np.random.default_rng(11)
    counts = np.zeros(SIZE)
    trials = 20_000
    for _ in range(trials):
        draft = Draft(proposed.draw(rng.random()), proposed)
        judged = judge_drawn([draft], lambda _: target, rng.random)
        counts[draft.token if judged.num_accepted else judged.next_token] += 1
    assert chi_squared(counts, trials * target) < CRITICAL_11


def test_pairs_of_tokens_have_the_targets_joint_distribution() -> None:
    first, proposed = distribution(3), few(distribution(4), 6)
    after = [distribution(20 + token) for token in range(SIZE)]
    proposed_after = [few(distribution(40 + token), 6) for token in range(SIZE)]
    rng = np.random.default_rng(12)
    counts = np.zeros((SIZE, SIZE))
    trials = 60_000
    for _ in range(trials):
        one = proposed.draw(rng.random())
        two = proposed_after[one].draw(rng.random())
        drafts = [Draft(one, proposed), Draft(two, proposed_after[one])]

        def target(place: int, drafts: list[Draft] = drafts) -> np.ndarray:
            return first if place == 0 else after[drafts[0].token] if place == 1 else first

        judged = judge_drawn(drafts, target, rng.random)
        tokens = [draft.token for draft in drafts[: judged.num_accepted]] + [judged.next_token]
        if len(tokens) == 1:  # the next round begins after the first token
            second = judge_drawn([], lambda _, t=tokens[0]: after[t], rng.random)
            tokens.append(second.next_token)
        counts[tokens[0], tokens[1]] += 1
    expected = trials * first[:, None] * np.stack(after)
    assert chi_squared(counts, expected) < CRITICAL_143


def test_a_chosen_draft_leaves_the_targets_distribution_as_it_is() -> None:
    target = distribution(5)
    rng = np.random.default_rng(13)
    counts = np.zeros(SIZE)
    trials = 20_000
    for _ in range(trials):
        judged = judge_drawn([Draft(3)], lambda _: target, rng.random)
        counts[3 if judged.num_accepted else judged.next_token] += 1
    assert chi_squared(counts, trials * target) < CRITICAL_11


def test_the_rest_of_equal_distributions_is_the_target_itself() -> None:
    target = distribution(6)
    drawn = few(target, SIZE)
    left = residual(target, Draft(0, drawn))
    assert left.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("ids", "weights"),
    [([], []), ([1], []), ([1, 1], [0.5, 0.5]), ([SIZE], [1.0]), ([1], [-1.0]), ([1], [0.0]),
     ([1], [float("nan")]), ([1, 2], [float("inf"), 1.0])],
)  # fmt: skip
def test_nonsense_is_refused(ids: list[int], weights: list[float]) -> None:
    with pytest.raises(DraftError):
        SparseDistribution.of(ids, weights, SIZE)


def test_a_token_outside_its_own_distribution_is_refused() -> None:
    with pytest.raises(DraftError):
        judge_drawn([Draft(9, few(np.eye(SIZE)[1], 1))], lambda _: distribution(1), lambda: 0.5)
