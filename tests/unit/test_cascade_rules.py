"""Cascades' pure parts: confidence, early stop, calibration, agreement, who is asked."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.dispatch.cascade.agreement import agree, overlap
from orchestrator.dispatch.cascade.calibration import (
    Sample,
    calibrate,
    share_for_budget,
    share_threshold,
)
from orchestrator.dispatch.cascade.confidence import SUREST, Confidence, TokenFigures
from orchestrator.dispatch.cascade.config import cascade_policies
from orchestrator.dispatch.cascade.judging import Bar, Judge, Why
from orchestrator.dispatch.cascade.policy import CascadePolicy, KnownModel, Target, resolve
from orchestrator.request import Privacy
from shoal.errors import ShoalError

DOUBTFUL = TokenFigures(-3.0, 4.0, 0.05)
FIGURES = st.builds(
    TokenFigures, st.floats(-30, 0), st.floats(0, 11), st.floats(0, 1)
)  # fmt: skip


def confidence(*tokens: TokenFigures) -> Confidence:
    grown = Confidence()
    for token in tokens:
        grown.add(token)
    return grown


@given(st.lists(FIGURES, max_size=20))
def test_score_is_a_share_and_the_best_end_bounds_every_end(tokens: list[TokenFigures]) -> None:
    half = confidence(*tokens[: len(tokens) // 2])
    whole = confidence(*tokens)
    assert 0 <= half.score <= 1
    assert half.best_score(len(tokens)) >= whole.score - 1e-9


def test_early_tokens_count_more_than_late_ones() -> None:
    assert confidence(DOUBTFUL, *[SUREST] * 9).score < confidence(*[SUREST] * 9, DOUBTFUL).score


def test_one_sure_token_is_less_than_many() -> None:
    assert confidence(SUREST).score < confidence(*[SUREST] * 8).score


def test_figures_that_are_no_numbers_are_doubt() -> None:
    broken = TokenFigures(-math.inf, math.nan, math.nan)
    assert confidence(broken).score < confidence(DOUBTFUL).score


def test_hopeless_only_when_no_usual_end_would_do() -> None:
    judge = Judge(Bar(0.7, expected_tokens=6), None, stops_early=True)
    judge.add(SUREST)
    assert not judge.hopeless()
    for _ in range(3):
        judge.add(DOUBTFUL)
    assert judge.hopeless()
    assert judge.why is Why.HOPELESS


def test_nothing_is_stopped_early_before_calibration_or_while_exploring() -> None:
    for bar, stops in ((Bar(0.99), True), (Bar(0.99, 6), False)):
        judge = Judge(bar, 4, stops_early=stops)
        judge.add(DOUBTFUL)
        assert not judge.hopeless()
        assert judge.decide(1) is Why.LOW_CONFIDENCE


def test_answer_without_figures_is_not_measured_and_stands() -> None:
    judge = Judge(Bar(1.0), None, stops_early=True)
    assert judge.decide(3) is Why.NOT_MEASURED
    assert judge.stands


def test_too_little_within_the_bound_is_slow_and_never_confident() -> None:
    for come in range(4):
        judge = Judge(Bar(0.5), None, stops_early=True)
        for _ in range(come):
            judge.add(SUREST)
        assert judge.decide_in_progress(come) is (Why.SLOW if come < 3 else Why.CONFIDENT)
    assert Judge(Bar(0.5), None, stops_early=True).decide_in_progress(1) is Why.NOT_MEASURED


def test_answer_that_says_nothing_is_not_sure() -> None:
    assert Judge(Bar(0.5), None, stops_early=True).decide(0) is Why.LOW_CONFIDENCE
    assert Judge(Bar(0.0), None, stops_early=True).decide(0) is Why.NOT_MEASURED


@pytest.mark.parametrize(("share", "below"), [(0.0, 0), (0.3, 3), (1.0, 10)])
def test_threshold_cuts_off_its_share(share: float, below: int) -> None:
    scores = [n / 10 for n in range(10)]
    threshold = share_threshold(scores, share)
    assert sum(score < threshold for score in scores) == below


def samples(count: int, **fields: object) -> list[Sample]:
    dice = random.Random(5)
    return [
        Sample(float(n), dice.random(), 1 + n % 30, **{"escalated": False, "whole": True, **fields})  # type: ignore[arg-type]
        for n in range(count)
    ]


def test_calibration_reaches_its_share_on_the_half_it_has_not_seen() -> None:
    found = calibrate(samples(4000), 0.25)
    assert abs(found.reached_share - 0.25) < 0.03
    assert found.reached_low < found.reached_share < found.reached_high
    assert found.expected_tokens == 27


def test_all_is_all_and_not_only_what_was_seen() -> None:
    found = calibrate(samples(101), 1.0)
    assert (found.reached_share, found.reached_high) == (1.0, 1.0)
    judge = Judge(Bar(found.threshold), None, stops_early=False)
    for _ in range(10_000):
        judge.add(SUREST)
    assert judge.decide(10_000) is Why.LOW_CONFIDENCE


def test_answers_that_were_cut_short_do_not_count() -> None:
    with pytest.raises(ShoalError, match="99 answers"):
        calibrate([*samples(99), *samples(500, whole=False)], 0.2)


def test_budget_becomes_the_share_that_spends_it() -> None:
    paid = samples(1001, escalated=True, cost_nanos=10, cloud_tokens=50)
    per_day = 86_400  # one request a second
    assert share_for_budget(paid, 10 * per_day * 0.2, money=True) == pytest.approx(0.2)
    assert share_for_budget(paid, 50 * per_day * 2.0, money=False) == 1.0
    with pytest.raises(ShoalError, match="not known"):
        share_for_budget(samples(200), 5, money=True)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("Paris", "The capital of France is Paris.", True),
        ("It is Rome.", "It is Paris.", True),  # words cannot tell: two of three are shared
        ("", "Something", False),
        ("Blue whales eat krill", "I do not know that", False),
    ],
)
def test_agreement_goes_by_words(first: str, second: str, same: bool) -> None:
    assert agree(first, second) is same
    assert overlap(first, second) == overlap(second, first)


SMALL = KnownModel("small", 10**8, on_edge=True, in_cloud=False)
LARGE = KnownModel("large", 3 * 10**9, on_edge=True, in_cloud=False)
CLOUD = KnownModel("cloud", 70 * 10**9, on_edge=False, in_cloud=True)


def test_pinned_request_is_handed_to_nobody() -> None:
    route = resolve(CascadePolicy(), [SMALL, LARGE, CLOUD], Privacy.ANY, pinned=True)
    assert (route.edge, route.target) == ("large", None)
    with pytest.raises(ShoalError, match="present"):
        resolve(CascadePolicy(), [CLOUD], Privacy.ANY, pinned=True)


def test_auto_takes_the_largest_small_model_and_then_the_cloud() -> None:
    route = resolve(CascadePolicy(), [SMALL, LARGE, CLOUD], Privacy.ANY)
    assert (route.edge, route.target) == ("large", Target("cloud", "cloud"))


def test_only_any_goes_on_to_the_cloud() -> None:
    policy = CascadePolicy("mine", edge="small", escalate_to=("cloud", "large"))
    for level in (Privacy.LOCAL_ONLY, Privacy.LOCAL_PREFERRED):
        assert resolve(policy, [SMALL, LARGE, CLOUD], level).target == Target("large", "edge")
        assert resolve(policy, [SMALL, CLOUD], level).target is None


def test_nobody_to_answer_is_said() -> None:
    with pytest.raises(ShoalError, match="No model"):
        resolve(CascadePolicy(), [CLOUD], Privacy.LOCAL_ONLY)


def test_policies_are_read_and_unknown_names_refused() -> None:
    (policy,) = cascade_policies([{"name": "mine", "edge": "small", "escalate_to": "cloud"}])
    assert policy.escalate_to == ("cloud",)
    for bad in ({"thresholt": 1}, {"threshold": 2}, {"delivery": "later"}, {"hold_s": 0}):
        with pytest.raises(ValueError, match="cascade"):
            cascade_policies([bad])
