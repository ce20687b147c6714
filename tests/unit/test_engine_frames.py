"""Running text waits for more; nothing else does, and nothing is lost or reordered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.engine.output import SampledToken, Update, joined
from agent.engine.policy import BatchingPolicy
from agent.engine.request import RequestKey
from tests.unit.test_engine_core import RecordingRunner, make_core, request

KEYS = [RequestKey(1, name) for name in "abc"]


def text(key: RequestKey, number: int) -> Update:
    return Update(key, text=f"{number} ", tokens=(SampledToken(number),))


@given(st.lists(st.sampled_from(KEYS)))
def test_each_streams_text_and_tokens_stay_whole_and_in_order(keys: list[RequestKey]) -> None:
    updates = [text(key, number) for number, key in enumerate(keys)]
    together = joined(updates)
    assert len(together) == len(set(keys))
    for update in together:
        numbers = [number for number, key in enumerate(keys) if key == update.key]
        assert update.text == "".join(f"{number} " for number in numbers)
        assert update.tokens == tuple(SampledToken(number) for number in numbers)


def test_a_new_request_with_an_old_id_is_not_joined_to_the_old_one() -> None:
    updates = [text(KEYS[0], 1), Update(KEYS[0], prompt_tokens=9), text(KEYS[0], 2)]
    first, second = joined(updates)
    assert first.text == "1 "
    assert (second.prompt_tokens, second.text) == (9, "2 ")


def test_first_text_and_ends_are_told_at_once_and_what_is_between_waits() -> None:
    core, _, _ = make_core(RecordingRunner())
    core.submit(request("a", max_tokens=4))
    intervals = []
    while core.has_work:
        core.step()
        intervals.append(core.frame_interval_s)
        if core.frame_interval_s == 0.0:
            core.take_updates()
    policy = BatchingPolicy()
    assert intervals == [0.0, policy.latency_frame_s, policy.latency_frame_s, 0.0]
