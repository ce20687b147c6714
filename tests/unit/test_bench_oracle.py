from dataclasses import replace

import pytest

from bench.oracle import Served, least_relative_error, median_error, oracle

ONE = Served("a", 0.0, 100.0, 10.0, 300.0, prompt_tokens=60, cached_tokens=10, completion_tokens=21)


def test_linear_answers_are_fitted_exactly_whatever_one_outlier_says():
    features = [[1.0, float(n)] for n in range(1, 30)]
    actual = [5.0 + 2.0 * n for n in range(1, 30)]
    actual[3] *= 40
    fitted = least_relative_error(features, actual)
    assert median_error(fitted, actual) < 0.001


def test_constant_is_the_best_one_value():
    assert least_relative_error([[1.0]] * 3, [10.0, 10.0, 1_000.0])[0] == pytest.approx(
        10, rel=0.05
    )


def test_oracle_sees_the_load_at_placement_and_hindsight_what_came_after():
    # Alone, or with one that came before, or with one whose prompt comes after.
    served = [replace(ONE, placed_ms=number * 1e4) for number in range(20)]
    for number in range(5, 20):
        before = number < 12
        served.append(
            replace(ONE, placed_ms=number * 1e4 + (-50.0 if before else 120.0), total_ms=400.0)
        )
        served[number] = replace(served[number], tpot_ms=20.0 if before else 40.0)
    errors = oracle(served)["tpot_ms"]
    assert errors["hindsight"] <= errors["oracle"] <= errors["constant"]
    assert errors["hindsight"] < errors["constant"]
