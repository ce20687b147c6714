"""How sure the model was, from a row of logits."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="the engine's library is not installed")

from agent.llama.sampler import confidence_of, logprob_of


def test_certain_token_has_no_entropy_and_full_margin() -> None:
    logits = np.full(8, -100.0, dtype=np.float32)
    logits[3] = 100.0
    assert confidence_of(logits, 3) == pytest.approx((0.0, 0.0, 1.0))


@pytest.mark.parametrize("likeliest", [0, 4, 7])
def test_two_equal_tokens_have_no_margin_and_the_entropy_of_a_coin(likeliest: int) -> None:
    logits = np.full(8, -np.inf, dtype=np.float32)
    logits[likeliest] = logits[2] = 1.5
    got = confidence_of(logits, 2)
    assert got == pytest.approx((-math.log(2), math.log(2), 0.0), abs=1e-6)


def test_figures_agree_with_the_definition() -> None:
    logits = np.random.default_rng(7).normal(0, 3, 4096).astype(np.float32)
    exact = logits.astype(np.float64) - np.logaddexp.reduce(logits.astype(np.float64))
    chances = np.sort(np.exp(exact))
    got = confidence_of(logits, 11)
    assert got.logprob == pytest.approx(exact[11], abs=1e-4)
    assert got.logprob == pytest.approx(logprob_of(logits, 11, 0).logprob, abs=1e-5)
    assert got.entropy == pytest.approx(-float(np.exp(exact) @ exact), abs=1e-4)
    assert got.margin == pytest.approx(chances[-1] - chances[-2], abs=1e-6)
