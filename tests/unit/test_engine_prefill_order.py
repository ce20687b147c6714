"""Which prompt is prefilled next when several hold a slot."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.config import BLOCK_TOKENS
from agent.engine.prefill_order import PrefillOrder
from agent.engine.request import RequestKey
from agent.engine.sequence import Sequence
from shoal.prefill_order import AGEING_CHUNKS
from tests.unit.test_engine_core import RecordingRunner, make_core, request


class WideRunner(RecordingRunner):
    slots = 8
    context_tokens = 9000


def sequence(name: str, chunks: int, *, priority: int = 0, tenant: str = "") -> Sequence:
    prompt = chunks * BLOCK_TOKENS
    return Sequence(request(name, prompt=prompt, priority=priority, tenant=tenant))


def taken(sequences: list[Sequence], num_chunks: int) -> list[str]:
    """Names of those that get the next chunks; ended ones leave."""
    order = PrefillOrder()
    names = []
    for _ in range(num_chunks):
        chosen = order.take([s for s in sequences if s.remaining_prefill])
        chosen.num_computed += BLOCK_TOKENS
        names.append(chosen.request.key.request_id)
    return names


def test_the_shortest_goes_first_and_the_longest_gets_every_fourth_chunk():
    sequences = [sequence("long", 64), sequence("middle", 6), sequence("short", 2)]
    assert taken(sequences, 11) == ["short"] * 2 + ["middle", "long"] + ["middle"] * 3 + [
        "long",
        "middle",
        "middle",
        "long",
    ]


def test_equal_prompts_are_computed_one_after_the_other():
    assert taken([sequence("a", 2), sequence("b", 2)], 3) == ["a", "a", "b"]


def test_priority_goes_before_length_and_ageing_before_priority():
    sequences = [sequence("short", 1), sequence("urgent", 9, priority=1)]
    assert taken(sequences, 5) == ["urgent", "urgent", "urgent", "short", "urgent"]


def test_another_tenants_priority_puts_nobody_back():
    sequences = [sequence("mine", 2, tenant="a"), sequence("pushy", 3, priority=9, tenant="b")]
    assert taken(sequences, 2) == ["mine", "mine"]


def test_negative_priority_yields_to_every_tenant():
    sequences = [
        sequence("background", 1, priority=-1, tenant="a"),
        sequence("b", 9, tenant="b"),
    ]
    assert taken(sequences, 3) == ["b", "b", "b"]


def first_token_steps(num_ahead: int) -> int:
    """Steps from the arrival of a one-chunk request to its first token, behind long ones."""
    core, scheduler, _ = make_core(WideRunner())
    for index in range(num_ahead):
        core.submit(request(f"long{index}", prompt=8191))
    core.step()
    core.submit(request("short", prompt=100))
    core.take_updates()
    for steps in range(1, 500):
        core.step()
        scheduler.check_integrity()
        if any(u.key.request_id == "short" and u.text for u in core.take_updates()):
            return steps
    return 500


def test_a_short_request_behind_long_ones_gets_its_first_token_in_two_steps_at_most():
    assert max(first_token_steps(num_ahead) for num_ahead in (1, 3, 7)) <= 2


def test_a_long_prompt_advances_beside_ever_new_short_ones():
    runner = WideRunner()
    core, _, _ = make_core(runner, max_waiting=50)
    long = RequestKey(1, "long")
    core.submit(request("long", prompt=20 * BLOCK_TOKENS, max_tokens=1))
    core.step()
    number = chunks = 0
    while core.has_work:
        while core.load().waiting == 0 and core.load().running < 8:
            core.submit(request(f"short{number}", prompt=BLOCK_TOKENS, max_tokens=1))
            number += 1
        core.step()
        chunks += 1
        if any(u.key == long and u.finished for u in core.take_updates()):
            break
    assert chunks <= AGEING_CHUNKS * 20


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(-2, 2)), min_size=1, max_size=8))
def test_the_oldest_never_goes_without_for_longer_than_its_turn_and_all_are_computed(prompts):
    sequences = [
        sequence(str(index), chunks, priority=priority)
        for index, (chunks, priority) in enumerate(prompts)
    ]
    num_chunks = sum(chunks for chunks, _ in prompts)
    names = taken(sequences, num_chunks)
    for index, (chunks, _) in enumerate(prompts):
        assert names.count(str(index)) == chunks
    waited = 0
    for at, name in enumerate(names):
        oldest = min(int(each) for each in names[at:])
        waited = 0 if int(name) == oldest else waited + 1
        assert waited < AGEING_CHUNKS
