from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.kv_budget import (
    MIB,
    FitRequest,
    KvShape,
    default_context_tokens,
    host_tier_bytes,
    plan_kv,
)

GIB = 1024 * MIB
SMOLLM2 = KvShape(num_layers=30, num_kv_heads=3, key_head_dim=64, value_head_dim=64, kv_type="f16")
# The article's example: 32 heads x 128, no grouped-query attention.
LLAMA_7B = KvShape(
    num_layers=32, num_kv_heads=32, key_head_dim=128, value_head_dim=128, kv_type="f16"
)


def test_bytes_per_token_follow_the_articles_formula() -> None:
    assert LLAMA_7B.bytes_per_token == 32 * 16 * 1024
    assert SMOLLM2.bytes_per_token == int(22.5 * 1024)
    assert replace(SMOLLM2, kv_type="q8_0").bytes_per_token == 12240


def test_a_small_model_fits_with_all_its_slots_and_says_how() -> None:
    budget = plan_kv(FitRequest(SMOLLM2, 98 * MIB, 8 * GIB, slots=8, context_tokens=4096))
    assert (budget.slots, budget.context_tokens) == (8, 4096)
    assert budget.live_bytes == 8 * 4096 * 23040
    assert budget.host_tier_bytes == 8 * GIB // 10
    text = "\n".join(budget.lines)
    assert "30 layers x 3 KV heads x (64 + 64) x 2 B, f16" in text
    assert "23040 B" in text


def test_slots_go_before_context_does() -> None:
    weights = int(3.9 * GIB)
    budget = plan_kv(FitRequest(LLAMA_7B, weights, 8 * GIB, slots=8, context_tokens=2048))
    assert 0 < budget.slots < 8
    assert budget.context_tokens == 2048
    assert any("lowered from 8 slots" in line for line in budget.lines)
    tight = plan_kv(FitRequest(LLAMA_7B, weights, 6 * GIB, slots=8, context_tokens=4096))
    assert tight.slots == 1
    assert 512 <= tight.context_tokens < 4096


def test_what_cannot_run_is_said_to_not_fit() -> None:
    budget = plan_kv(FitRequest(LLAMA_7B, 14 * GIB, 8 * GIB, slots=1, context_tokens=2048))
    assert not budget.fits
    assert "does not fit" in budget.lines[-1]


@pytest.mark.parametrize("free_gib", [1, 2, 4, 8, 64])
def test_parts_never_exceed_the_free_memory(free_gib: int) -> None:
    free = free_gib * GIB
    budget = plan_kv(FitRequest(SMOLLM2, 98 * MIB, free, slots=64, context_tokens=8192))
    assert 98 * MIB + budget.live_bytes + budget.host_tier_bytes < free * 0.9


def test_defaults_of_a_running_engine_are_bounded_shares() -> None:
    assert host_tier_bytes(8 * GIB) == 8 * GIB // 10
    assert host_tier_bytes(512 * GIB) == 4 * GIB
    # A quarter of 8 GiB over 8 slots of 22.5 KiB a token, rounded down to whole cells.
    assert default_context_tokens(8 * GIB, 23040, 8, 131072) == 11520
    assert default_context_tokens(8 * GIB, 23040, 8, 8192) == 8192
    assert default_context_tokens(16 * MIB, 23040, 8, 8192) == 0
