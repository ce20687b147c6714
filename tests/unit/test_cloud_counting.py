"""Tokens and money as we count them, whatever an endpoint says."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.dispatch.counting import (
    AnswerCount,
    UsageFlag,
    prompt_bounds,
    reserved_prompt_tokens,
)
from orchestrator.dispatch.prices import Price, dearest_nanos
from shoal.openai.tier_use import TierUse
from shoal.v1 import inference_pb2 as pb

TEXT = "The quick brown fox jumps over the lazy dog. " * 10  # 450 bytes, about 100 tokens


def ask(text: str = TEXT) -> pb.GenerateRequest:
    return pb.GenerateRequest(chat=pb.ChatPrompt(messages=[pb.ChatMessage(content=text)]))


def answer(*parts: str, max_tokens: int | None = 100) -> AnswerCount:
    count = AnswerCount(max_tokens)
    for part in parts:
        count.add(part)
    return count


@pytest.mark.parametrize(
    ("claimed", "charged", "flags"),
    [
        (pb.Usage(prompt_tokens=100, completion_tokens=2), (100, 2), ()),
        (None, (154, 4), (UsageFlag.MISSING,)),
        # Hidden tokens may have been generated, within max_tokens.
        (pb.Usage(prompt_tokens=100, completion_tokens=90), (100, 90), ()),
        (
            pb.Usage(prompt_tokens=100, completion_tokens=2**31),
            (100, 100),
            (UsageFlag.OVER_REPORTED,),
        ),
        (pb.Usage(prompt_tokens=3, completion_tokens=0), (154, 4), (UsageFlag.UNDER_REPORTED,)),
        (
            pb.Usage(prompt_tokens=2**31, completion_tokens=2),
            (722, 2),
            (UsageFlag.OVER_REPORTED,),
        ),
    ],
)
def test_claims_count_within_what_the_text_allows(
    claimed: pb.Usage | None, charged: tuple[int, int], flags: tuple[UsageFlag, ...]
) -> None:
    counted = answer("From", " above").counted(prompt_bounds(ask()), claimed)
    assert (counted.prompt_tokens, counted.completion_tokens) == charged
    assert counted.flags == flags


def test_answer_that_runs_past_max_tokens_is_noticed() -> None:
    assert not answer(*["x"] * 26, max_tokens=10).overran
    assert answer(*["x"] * 27, max_tokens=10).overran
    assert answer("x" * 10_000, max_tokens=10).overran
    assert not answer("x" * 10_000, max_tokens=None).overran


@pytest.mark.parametrize("claimed", [None, pb.Usage(prompt_tokens=100, completion_tokens=27)])
@pytest.mark.parametrize("parts", [["x"] * 27, ["x" * 10_000], ["x" * 40] * 9])
def test_charge_never_passes_max_tokens(parts: list[str], claimed: pb.Usage | None) -> None:
    count = answer(*parts, max_tokens=10)
    assert count.counted(prompt_bounds(ask()), claimed).completion_tokens == 10


def test_answer_that_is_longer_in_chunks_does_not_fit() -> None:
    assert answer(*["x"] * 10, max_tokens=10).fits
    over = answer(*["x"] * 11, max_tokens=10)
    assert not over.fits
    assert UsageFlag.OVERRAN in over.counted(prompt_bounds(ask()), None).flags


def test_token_ids_are_counted_exactly() -> None:
    request = pb.GenerateRequest(tokens=pb.TokenPrompt(ids=range(50)))
    assert prompt_bounds(request).least == 50
    assert reserved_prompt_tokens(request) == 50


@given(st.text(max_size=400), st.integers(0, 2**31), st.integers(0, 2**31))
def test_charge_stays_within_the_bounds_for_any_claim(text: str, prompt: int, done: int) -> None:
    bounds, count = prompt_bounds(ask(text)), answer(text)
    claimed = pb.Usage(prompt_tokens=prompt, completion_tokens=done)
    counted = count.counted(bounds, claimed)
    assert bounds.least <= counted.prompt_tokens <= bounds.most
    assert count.bounds().least <= counted.completion_tokens <= count.bounds().most
    assert reserved_prompt_tokens(ask(text)) >= bounds.estimate // 2


def test_cost_is_rounded_up_and_exact() -> None:
    price = Price(Decimal("0.15"), Decimal("0.6"))
    assert price.cost_nanos(1_000_000, 1_000_000) == 750_000_000
    assert price.cost_nanos(1, 0) == 150
    assert Price(Decimal("0.0001"), Decimal(0)).cost_nanos(1, 0) == 1


def test_dearest_price_is_unknown_when_one_is() -> None:
    cheap, dear = Price(Decimal(1), Decimal(1)), Price(Decimal(2), Decimal(3))
    assert dearest_nanos([cheap, dear], 10, 10) == 50_000
    assert dearest_nanos([cheap, None], 10, 10) is None


def test_sum_with_an_unknown_cost_is_unknown() -> None:
    known, unknown = TierUse(1, 2, 30, "USD"), TierUse(1, 1, None, "USD", ("usage_missing",))
    assert known.plus(known) == TierUse(2, 4, 60, "USD")
    assert known.plus(unknown) == TierUse(2, 3, None, "USD", ("usage_missing",))
