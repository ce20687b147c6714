from __future__ import annotations

import random

import pytest

from agent.speculative.learning import Acceptance, PassTimes, Profile, Round, Window
from agent.speculative.window import (
    RoundCosts,
    chance_of,
    choose_window,
    expected_tokens,
    least_chance,
)


def simulated_per_s(costs: RoundCosts, acceptance: float, num_drafted: int, seed: int) -> float:
    """Tokens a second of 4,000 rounds whose drafts stand by lot."""
    if num_drafted == 0:
        return 1e3 / costs.alone_ms
    dice = random.Random(seed)
    tokens = 0
    for _ in range(4_000):
        stood = 0
        while stood < num_drafted and dice.random() < acceptance:
            stood += 1
        tokens += stood + 1
    return 1e3 * tokens / (4_000 * costs.round_ms(num_drafted))


@pytest.mark.parametrize("round_trip_ms", [0, 5, 20, 60, 150, 400])
@pytest.mark.parametrize("acceptance", [0.1, 0.3, 0.5, 0.7, 0.85, 0.95])
def test_the_choice_is_within_ten_percent_of_the_best_simulated(
    round_trip_ms: float, acceptance: float
) -> None:
    costs = RoundCosts(10.0, round_trip_ms, 70.0, 10.0, 80.0)
    chosen = choose_window(costs, acceptance)
    best = max(simulated_per_s(costs, acceptance, k, seed=k) for k in range(17))
    assert simulated_per_s(costs, acceptance, chosen.num_drafted, seed=99) > 0.9 * best


def test_expected_tokens_of_certain_drafts_are_all() -> None:
    assert expected_tokens(4, 1.0) == 5.0
    assert expected_tokens(4, 0.0) == 1.0


def test_a_far_verifier_is_left_alone_and_a_near_one_is_not() -> None:
    assert choose_window(RoundCosts(10.0, 2_000.0, 70.0, 10.0, 80.0), 0.8).num_drafted == 0
    assert choose_window(RoundCosts(10.0, 5.0, 70.0, 10.0, 80.0), 0.8).num_drafted >= 3


def test_acceptance_counts_only_drafts_that_were_tried() -> None:
    acceptance = Acceptance(0.5, 0.001)
    for _ in range(200):
        acceptance.see(num_drafted=8, num_accepted=1)
    assert acceptance.value == pytest.approx(0.5, abs=0.01)


def test_pass_times_find_the_line_they_lie_on() -> None:
    passes = PassTimes()
    for rows in (1, 5, 9, 3, 7):
        passes.see(rows, 40.0 + 6.0 * rows)
    base_ms, row_ms = passes.line()
    assert base_ms == pytest.approx(40.0)
    assert row_ms == pytest.approx(6.0)


def seen(wall_ms: float, accepted: int = 1) -> Round:
    return Round(4, accepted, 40.0, wall_ms, 110.0, 5)


def test_drafting_is_turned_off_when_it_does_not_pay_and_tried_again() -> None:
    window = Window(Profile())
    window.see_alone(80.0)
    for _ in range(10):
        window.see_round(seen(wall_ms=900.0))
    first, second, third = window.plan(), window.plan(), window.plan()
    assert (first.num_drafted, first.num_alone) == (0, 16)
    assert second.num_drafted == 1
    assert (third.num_drafted, third.num_alone) == (0, 32)
    assert "does not pay" in first.because


def test_a_request_starts_from_what_those_before_it_learned() -> None:
    profile = Profile()
    window = Window(profile)
    for _ in range(50):
        window.see_round(seen(wall_ms=115.0, accepted=4))
    assert Window(profile).acceptance > 0.9


@pytest.mark.parametrize("round_trip_ms", [0, 20, 60])
def test_rounds_that_end_where_a_draft_is_not_worth_its_time_beat_any_fixed_window(
    round_trip_ms: float,
) -> None:
    costs = RoundCosts(10.0, round_trip_ms, 76.0, 4.0, 80.0)
    dice = random.Random(3)
    # Half of the tokens are easy to draft, half are not.
    sure = [dice.choice((0.98, 0.15)) for _ in range(40_000)]
    stands = [dice.random() < chance_of(each) for each in sure]

    def per_s(longest: int, least: float) -> float:
        place, tokens, took_ms = 0, 0, 0.0
        while place + longest < len(sure):
            drafted, chance = 0, 1.0
            while drafted < longest:
                chance *= chance_of(sure[place + drafted])
                drafted += 1
                if chance < least:
                    break
            stood = 0
            while stood < drafted and stands[place + stood]:
                stood += 1
            took_ms += costs.round_ms(drafted)
            tokens += stood + 1
            place += stood + 1
        return 1e3 * tokens / took_ms

    fixed = max(per_s(num_drafted, 0.0) for num_drafted in range(1, 17))
    assert per_s(16, least_chance(costs, fixed)) > fixed
