from __future__ import annotations

import random

import pytest

from agent.speculative.learning import (
    Acceptance,
    PassTimes,
    Plan,
    Profile,
    Round,
    Sureness,
    Window,
)
from agent.speculative.window import (
    RoundCosts,
    choose_window,
    expected_tokens,
    least_chance,
    supposed_chance,
)


def straight(round_trip_ms: float, base_ms: float, row_ms: float) -> RoundCosts:
    """Passes on a straight line; drafts take 10 ms, the target alone 80."""
    passes = tuple(base_ms + row_ms * rows for rows in range(1, 18))
    return RoundCosts(10.0, round_trip_ms, passes, 80.0)


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
    costs = straight(round_trip_ms, 70.0, 10.0)
    chosen = choose_window(costs, acceptance)
    best = max(simulated_per_s(costs, acceptance, k, seed=k) for k in range(17))
    assert simulated_per_s(costs, acceptance, chosen.num_drafted, seed=99) > 0.9 * best


def test_expected_tokens_of_certain_drafts_are_all() -> None:
    assert expected_tokens(4, 1.0) == 5.0
    assert expected_tokens(4, 0.0) == 1.0


def test_a_far_verifier_is_left_alone_and_a_near_one_is_not() -> None:
    assert choose_window(straight(2_000.0, 70.0, 10.0), 0.8).num_drafted == 0
    assert choose_window(straight(5.0, 70.0, 10.0), 0.8).num_drafted >= 3


def test_acceptance_counts_only_drafts_that_were_tried() -> None:
    acceptance = Acceptance(0.5, 0.001)
    for _ in range(200):
        acceptance.see(num_drafted=8, num_accepted=1)
    assert acceptance.value == pytest.approx(0.5, abs=0.01)


def test_pass_times_keep_a_step_that_no_straight_line_has() -> None:
    # As a Q8_0 model's passes: several rows cost much more than one, but many hardly more than few.
    passes = PassTimes()
    for rows, pass_ms in ((1, 60.0), (2, 160.0), (5, 230.0), (17, 310.0)):
        passes.see(rows, pass_ms)
    table = passes.table(17)
    assert (table[0], table[1], table[16]) == (60.0, 160.0, 310.0)
    assert table[8] == pytest.approx(230.0 + 80.0 * 4 / 12)


def test_a_pass_takes_no_longer_than_one_over_more_rows_and_unseen_ones_a_little() -> None:
    passes = PassTimes()
    for rows, pass_ms in ((1, 100.0), (3, 900.0), (5, 140.0)):
        passes.see(rows, pass_ms)
    table = passes.table(9)
    assert max(table[:5]) == 140.0
    assert table[8] == pytest.approx(140.0 + 4 * 10.0)
    only = PassTimes()
    only.see(5, 140.0)
    assert only.table(9)[0] == pytest.approx(100.0)


def test_how_often_unsure_drafts_stand_is_learned() -> None:
    sureness = Sureness()
    assert sureness.chance(0.05) < 0.5
    for _ in range(40):
        sureness.see((0.05, 0.05, 0.9), num_accepted=2)
    assert sureness.chance(0.05) > 0.9
    # It fell each time, and what came after it was never tried.
    assert sureness.chance(0.9) < 0.2
    assert sureness.chance(0.5) == Sureness().chance(0.5)


def seen(wall_ms: float, accepted: int = 1) -> Round:
    return Round(4, accepted, 40.0, wall_ms, 110.0, 5)


def test_drafting_is_turned_off_when_it_does_not_pay_and_tried_again() -> None:
    profile = Profile()
    window = Window(profile)
    window.see_alone(80.0)
    for _ in range(10):
        window.see_round(seen(wall_ms=900.0))
    first = window.plan()
    assert first.num_drafted == 0
    assert first.num_alone > 128
    assert "does not pay" in first.because
    assert window.choice is not None
    loss_ms, num_alone = window.choice.loss_ms(window.acceptance), 1
    # A new request tries no sooner: what trials lose is counted over all of them.
    while not (trial := Window(profile).plan()).num_drafted:
        window.see_alone(80.0)
        num_alone += 1
        assert num_alone < 1_000
    # A round as it would be if it paid: nothing else tells whether it does.
    assert trial.num_drafted > 1
    assert loss_ms == pytest.approx(0.04 * 80.0 * num_alone, rel=0.1)
    assert Window(profile).plan().num_drafted == 0


def test_round_trips_are_learned_from_the_target_by_itself_too() -> None:
    window = Window(profile := Profile())
    for _ in range(100):
        window.see_round(seen(wall_ms=900.0))
    for _ in range(300):
        window.see_alone(80.0, wall_ms=85.0)
    assert profile.round_trip.value == pytest.approx(5.0, abs=2.0)


def looped_per_s(costs: RoundCosts, acceptance: float, fixed: int | None = None) -> float:
    """Tokens a second of 60 requests of 64 tokens that learn as they go, from nothing.

    `fixed`: always so many drafts instead; 0: the target alone.
    """
    dice = random.Random(5)
    profile = Profile()
    tokens, took_ms = 0, 0.0
    # As sure as the learner supposes at first of drafts that stand so often.
    sure = acceptance**3
    for _ in range(60):
        window, left = Window(profile), 64
        if not profile.passes.known:
            window.see_alone(costs.alone_ms)  # the node's own word at the opening
        while left > 0:
            plan = window.plan() if fixed is None else Plan(fixed, 256, "")
            if not plan.num_drafted:
                num_alone = min(plan.num_alone, left)
                window.see_alone(costs.alone_ms, costs.round_trip_ms + costs.alone_ms)
                for _ in range(num_alone - 1):
                    window.see_alone(costs.alone_ms)
                took_ms += costs.round_trip_ms + num_alone * costs.alone_ms
                left -= num_alone
                tokens += num_alone
                continue
            drafted, chance = 0, 1.0
            while drafted < min(plan.num_drafted, left) and chance >= plan.least_chance:
                drafted += 1
                chance *= window.chance_of(sure)
            stood = 0
            while stood < drafted and dice.random() < acceptance:
                stood += 1
            pass_ms = costs.pass_ms[drafted]
            window.see_round(
                Round(
                    drafted, stood, drafted * costs.draft_ms, costs.round_trip_ms + pass_ms,
                    pass_ms, drafted + 1, (sure,) * drafted,
                )
            )  # fmt: skip
            took_ms += costs.round_ms(drafted)
            tokens += stood + 1
            left -= stood + 1
    return 1e3 * tokens / took_ms


# As a Q8_0 model's passes on two cores: several rows cost much more than one, as measured.
STEEP = (1.0, 2.6, 3.0, 3.3, 4.1, 4.2, 4.4, 4.4, 4.8, 4.8, 4.9, 4.9, 5.3, 5.3, 5.5, 5.5, 6.1)


@pytest.mark.parametrize("ratios", [STEEP, tuple(1 + 0.05 * n for n in range(17))])
@pytest.mark.parametrize("round_trip_ms", [0, 5, 20, 60, 150])
@pytest.mark.parametrize("acceptance", [0.1, 0.3, 0.5, 0.7, 0.85, 0.95])
def test_learned_rounds_are_within_ten_percent_of_the_best_that_knows_all(
    ratios: tuple[float, ...], round_trip_ms: float, acceptance: float
) -> None:
    costs = RoundCosts(10.0, round_trip_ms, tuple(80.0 * ratio for ratio in ratios), 80.0)
    best = max(looped_per_s(costs, acceptance, fixed) for fixed in (*range(9), 10, 12, 14, 16))
    assert looped_per_s(costs, acceptance) > 0.9 * best


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
    costs = straight(round_trip_ms, 76.0, 4.0)
    dice = random.Random(3)
    # Half of the tokens are easy to draft, half are not.
    sure = [dice.choice((0.98, 0.15)) for _ in range(40_000)]
    stands = [dice.random() < supposed_chance(each) for each in sure]

    def per_s(longest: int, least: float) -> float:
        place, tokens, took_ms = 0, 0, 0.0
        while place + longest < len(sure):
            drafted, chance = 0, 1.0
            while drafted < longest:
                chance *= supposed_chance(sure[place + drafted])
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
