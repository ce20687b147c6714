import random
from dataclasses import replace

import pytest

from orchestrator.fleet.view import DeviceId
from orchestrator.request import Privacy, Slo
from orchestrator.routing.decision import RejectionKind
from orchestrator.routing.drawing import FULL_SCAN_DEVICES
from orchestrator.routing.estimator import Outcome
from orchestrator.routing.prefixes import (
    FORGET_AFTER_MS,
    MAX_HOLDERS,
    MAX_PREFIXES,
    PREFIX_BYTES,
    PrefixMemory,
    cached_tokens,
    hints_of,
    whole_blocks,
)
from orchestrator.routing.router import Router
from tests.unit.test_routing_router import MODEL, chosen, device, fleet, kinds, request, served

PROMPT = random.Random(3).randbytes(8_000)
HINTS = hints_of(PROMPT)

WRONG = Outcome(
    device_id=DeviceId("id-a"),
    model=MODEL,
    prompt_bytes=len(PROMPT),
    prompt_tokens=2_000,
    cached_tokens=0,
    completion_tokens=10,
    queue_ms=0.0,
    ttft_ms=2_000.0,
    tpot_ms=10.0,
    mean_batch=1.0,
    predicted_cached_tokens=1_500,
)


def ask(router, view, *, now_ms=1000.0, **changes):
    changes = {"prompt_bytes": len(PROMPT), "prefix_hints": HINTS, **changes}
    return router.route(request(**changes), view, now_ms=now_ms)


def two(**changes):
    return fleet(device("a", **changes), device("b", **changes))


def test_prompts_share_hints_as_far_as_they_are_equal():
    other = PROMPT[:3_000] + b"x" * 5_000
    shared = sum(mine == theirs for mine, theirs in zip(HINTS, hints_of(other), strict=True))
    assert PREFIX_BYTES[shared - 1] <= 3_000 < PREFIX_BYTES[shared]


def test_hints_of_another_tenant_are_others():
    assert not set(HINTS) & set(hints_of(PROMPT, b"salt"))


def test_short_prompt_has_no_hints():
    assert hints_of(b"x" * (PREFIX_BYTES[0] - 1)) == ()


def test_ladder_grows():
    assert list(PREFIX_BYTES) == sorted(set(PREFIX_BYTES))


@pytest.mark.parametrize(
    ("num_bytes", "prompt_tokens", "expected"),
    [(0, 1000, 0), (2048, 1000, 256), (8000, 1000, 999), (8000, 128, 127)],
)
def test_cached_tokens_are_never_all(num_bytes, prompt_tokens, expected):
    assert cached_tokens(num_bytes, 8000, prompt_tokens) == expected


def test_only_whole_blocks_come_from_other_devices():
    assert [whole_blocks(tokens) for tokens in (0, 127, 128, 300)] == [0, 0, 128, 256]


def test_second_request_goes_where_the_first_left_its_prefix():
    router = Router()
    first = chosen(ask(router, two(), request_id="r0"))
    for number in range(1, 20):
        decision = ask(router, two(), request_id=f"r{number}")
        assert chosen(decision) == first
        assert decision.chosen.prediction.cached_tokens > 1_000
        assert "prompt tokens cached there" in decision.reason


def test_hit_does_not_outweigh_a_queue():
    router = Router()
    holder = chosen(ask(router, two()))
    busy = fleet(*(device(n, in_flight={MODEL: 12} if n == holder else {}) for n in ("a", "b")))
    decision = ask(router, busy)
    assert chosen(decision) != holder
    assert kinds(decision)[holder] is RejectionKind.SCORE


def test_hit_outweighs_a_small_load():
    router = Router()
    holder = chosen(ask(router, two()))
    view = fleet(*(device(n, in_flight={MODEL: 1} if n == holder else {}) for n in ("a", "b")))
    assert chosen(ask(router, view)) == holder


def test_hit_can_be_what_meets_the_slo():
    router = Router()
    holder = chosen(ask(router, two()))
    decision = ask(router, two(), slo=Slo(ttft_ms=1_000.0))
    assert chosen(decision) == holder
    assert set(kinds(decision).values()) == {RejectionKind.SLO_TTFT}


def sharing(bytes_per_s=100e6, **holder):
    """Two devices of one block space; `a`, asked for by name first, is as `holder` says later."""
    model = served(kv_bytes_per_token=1_000, block_space="s", shared_bytes_per_s=bytes_per_s)
    views = fleet(device("a", model=model), device("b", model=model))
    router = Router()
    assert chosen(ask(router, views, device="a")) == "a"
    return router, fleet(device("a", model=model, **holder), device("b", model=model))


def test_what_one_device_of_a_block_space_was_given_others_are_predicted_to_fetch():
    router, views = sharing(in_flight={MODEL: 12})
    decision = ask(router, views)
    assert chosen(decision) == "b"
    assert decision.chosen.prediction.cached_tokens > 1_000
    assert "prompt tokens cached in the shared tier" in decision.reason
    # 1,920 tokens of 1,000 bytes at 100 MB/s, instead of 1,920 ms of prefill.
    alone = ask(Router(), views).chosen.prediction.ttft_ms
    tokens = decision.chosen.prediction.cached_tokens
    assert alone - decision.chosen.prediction.ttft_ms == pytest.approx(tokens - tokens / 100)


def test_who_holds_a_prefix_goes_before_who_would_fetch_it():
    router, views = sharing(bytes_per_s=5e6)
    for number in range(10):
        assert chosen(ask(router, views, request_id=f"r{number}")) == "a"


@pytest.mark.parametrize(
    ("bytes_per_s", "privacy"),
    [(100e6, Privacy.LOCAL_ONLY), (0.0, Privacy.ANY), (1e5, Privacy.ANY)],
)
def test_nothing_is_foreseen_of_a_tier_that_is_forbidden_unmeasured_or_slow(bytes_per_s, privacy):
    router, views = sharing(bytes_per_s=bytes_per_s, in_flight={MODEL: 12})
    decision = ask(router, views, privacy=privacy)
    assert chosen(decision) == "b"
    assert decision.chosen.prediction.cached_tokens == 0


def test_forgotten_device_holds_nothing():
    router = Router()
    holder = chosen(ask(router, two()))
    router.forget(DeviceId(f"id-{holder}"))
    decision = ask(router, two())
    assert decision.chosen.prediction.cached_tokens == 0


def test_old_prefixes_count_for_nothing():
    router = Router()
    ask(router, two())
    late = ask(router, two(), now_ms=1000.0 + FORGET_AFTER_MS + 1)
    assert late.chosen.prediction.cached_tokens == 0


def test_prefix_of_one_model_says_nothing_of_another():
    memory = PrefixMemory()
    memory.note("one", HINTS, DeviceId("d"), 0.0)
    assert memory.cached_bytes("one", HINTS, 0.0) == {"d": PREFIX_BYTES[len(HINTS) - 1]}
    assert memory.cached_bytes("other", HINTS, 0.0) == {}


def test_holder_of_a_longer_prefix_is_known_for_the_longer_one():
    memory = PrefixMemory()
    memory.note("m", HINTS, DeviceId("long"), 0.0)
    memory.note("m", HINTS[:3], DeviceId("short"), 0.0)
    found = memory.cached_bytes("m", HINTS, 0.0)
    assert found == {"long": PREFIX_BYTES[len(HINTS) - 1], "short": PREFIX_BYTES[2]}


def test_where_a_beginning_ends_is_known_once_a_second_prompt_had_it():
    # 7,900 bytes are the same; the ladder knows of the first 6,144.
    memory, asked = PrefixMemory(), [PROMPT[:7_900] + bytes([n]) * 400 for n in range(4)]
    first, second, third, fourth = [hints_of(prompt) for prompt in asked]
    held = []
    for hints, cached in ((first, 30), (second, 1_975), (third, 1_975), (fourth, 0)):
        held.append(memory.cached_bytes("m", hints, 0.0).get(DeviceId("d"), 0))
        memory.note("m", hints, DeviceId("d"), 0.0)
        memory.observe(replace(WRONG, model="m", prompt_bytes=8_300, prompt_tokens=2_075,
                               cached_tokens=cached, predicted_cached_tokens=0,
                               prefix_hints=hints))  # fmt: skip
    assert held == [0, 6_144, 7_900, 7_900]
    # It was not there any more: what the ladder says is left.
    assert memory.cached_bytes("m", fourth[:-1], 0.0) == {"d": 6_144}


def test_what_all_prompts_begin_with_is_known_of_devices_that_served_one():
    router, asked = Router(), {"prefix_hints": (), "prompt_bytes": 400}
    first = ask(router, fleet(device("a")), **asked).chosen.prediction
    for cached in (0, 30, 700, 30, 30):
        router.observe(replace(WRONG, prompt_bytes=400, prompt_tokens=100, cached_tokens=cached,
                               predicted_cached_tokens=0))  # fmt: skip
    seen = ask(router, two(), **asked)
    held = {c.device_id: c.prediction.cached_tokens for c in seen.candidates}
    assert (first.cached_tokens, held) == (0, {"id-a": 30, "id-b": 0})


def test_memory_is_bounded_in_prefixes_and_in_holders():
    memory = PrefixMemory()
    for number in range(MAX_PREFIXES + 10):
        memory.note("m", (number,), DeviceId("d"), float(number))
    assert len(memory) == MAX_PREFIXES
    assert memory.cached_bytes("m", (0,), 0.0) == {}
    for number in range(MAX_HOLDERS + 3):
        memory.note("m", (-1,), DeviceId(f"d{number}"), 0.0)
    assert set(memory.cached_bytes("m", (-1,), 0.0)) == {f"d{n}" for n in range(3, MAX_HOLDERS + 3)}


def test_large_fleet_looks_at_the_holder_though_it_draws_only_a_few():
    view = fleet(*(device(f"d{n}") for n in range(FULL_SCAN_DEVICES * 20)))
    router = Router()
    holder = chosen(ask(router, view, request_id="r0"))
    for number in range(1, 10):
        assert chosen(ask(router, view, request_id=f"r{number}")) == holder


def test_model_that_is_never_cached_loses_its_predicted_hits():
    router, wrong = Router(), WRONG
    ask(router, two())
    for _ in range(60):
        router.observe(wrong)
    assert ask(router, two()).chosen.prediction.cached_tokens < 10
    for _ in range(60):
        router.observe(replace(wrong, ttft_ms=510.0, cached_tokens=1_500))
    assert ask(router, two()).chosen.prediction.cached_tokens > 1_000
