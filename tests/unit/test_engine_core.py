"""The step loop's body against a runner that computes nothing but remembers everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.config import BLOCK_TOKENS
from agent.engine.core import EngineCore
from agent.engine.meter import Clocks
from agent.engine.output import FinishReason, SampledToken
from agent.engine.policy import BatchingPolicy
from agent.engine.request import GenerationRequest, RequestKey, SamplingParams
from agent.engine.runner import DecodeItem
from agent.engine.scheduler import Scheduler
from shoal.errors import Reason

END = 999


class RecordedSampler:
    """Counts how often it was closed."""

    def __init__(self) -> None:
        self.num_closed = 0

    def close(self) -> None:
        self.num_closed += 1


class RecordingRunner:
    """Says token n as its n-th; checks that KV positions are contiguous."""

    slots = 3
    context_tokens = 1000

    def __init__(self, lengths: dict[int, int] | None = None) -> None:
        self.kv = [0] * self.slots
        self.samplers: list[RecordedSampler] = []
        self.held: list[RecordedSampler | None] = [None] * self.slots
        self.calls: list[tuple] = []
        self._lengths = lengths or {}

    def start(self, slot: int, sampling: SamplingParams, prompt: Sequence[int]) -> None:
        self.clear(slot)
        self.held[slot] = RecordedSampler()
        self.samplers.append(self.held[slot])

    def prefill(self, slot, tokens, position, *, want_token):
        assert position == self.kv[slot]
        assert position % BLOCK_TOKENS == 0
        assert len(tokens) == BLOCK_TOKENS or want_token
        self.kv[slot] += len(tokens)
        self.calls.append(("prefill", slot, len(tokens)))
        return SampledToken(0) if want_token else None

    def decode(self, batch: Sequence[DecodeItem]) -> list[SampledToken]:
        for item in batch:
            assert item.position == self.kv[item.slot]
            self.kv[item.slot] += 1
        self.calls.append(("decode", *(item.slot for item in batch)))
        return [SampledToken(item.token + 1) for item in batch]

    def clear(self, slot: int) -> None:
        self.kv[slot] = 0
        if self.held[slot] is not None:
            self.held[slot].close()
        self.held[slot] = None

    def detach(self, slot: int) -> RecordedSampler:
        sampler, self.held[slot] = self.held[slot], None
        self.kv[slot] = 0
        assert sampler is not None
        return sampler

    def attach(self, slot: int, sampler: RecordedSampler) -> None:
        assert self.held[slot] is None
        assert not sampler.num_closed
        self.held[slot] = sampler

    def state_get(self, slot: int) -> memoryview:
        raise NotImplementedError

    def state_set(self, slot: int, blob: bytes | memoryview) -> int:
        raise NotImplementedError

    def piece(self, token: int) -> bytes:
        return f"<{token}>".encode()

    def is_end(self, token: int) -> bool:
        return token == END


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.001
        return self.now_s


def make_core(runner: RecordingRunner, *, max_waiting: int = 4, threshold: int = 4):
    clock = Clock()
    scheduler = Scheduler(runner.slots, max_waiting, BatchingPolicy(threshold, 4))
    return EngineCore(runner, scheduler, Clocks(clock, clock)), scheduler, clock


def request(name: str, prompt: int = 5, **changes) -> GenerationRequest:
    made = GenerationRequest(
        RequestKey(1, name), tuple(range(prompt)), SamplingParams(temperature=0.0), max_tokens=4
    )
    return replace(made, **changes)


def run(core: EngineCore):
    updates = []
    while core.has_work or core.can_compute:
        core.step()
        updates += core.take_updates()
    return updates


def texts(updates) -> dict[str, str]:
    result: dict[str, str] = {}
    for update in updates:
        name = update.key.request_id
        result[name] = result.get(name, "") + update.text
    return result


def test_a_request_is_admitted_streamed_and_finished_in_order():
    core, _, _ = make_core(RecordingRunner())
    core.submit(request("a"))
    updates = core.take_updates() + run(core)
    assert updates[0].prompt_tokens == 5
    assert texts(updates) == {"a": "<0><1><2><3>"}
    finished = updates[-1].finished
    assert finished is not None
    assert finished.reason is FinishReason.LENGTH
    assert finished.completion_tokens == 4
    assert updates[-1].tokens == (SampledToken(3),)


def test_prefill_is_cut_at_multiples_of_the_block_size():
    runner = RecordingRunner()
    core, _, _ = make_core(runner)
    core.submit(request("a", prompt=300, max_tokens=1))
    run(core)
    assert runner.calls == [("prefill", 0, 128), ("prefill", 0, 128), ("prefill", 0, 44)]


def test_a_long_prompt_stalls_running_streams_for_one_chunk_at_a_time_in_latency_mode():
    runner = RecordingRunner()
    core, _, _ = make_core(runner)
    core.submit(request("short", max_tokens=10))
    core.step()
    core.submit(request("long", prompt=400, max_tokens=1))
    run(core)
    kinds = [call[0] for call in runner.calls]
    assert kinds[:8] == ["prefill", "decode"] * 4


def test_throughput_mode_fills_slots_before_it_decodes():
    runner = RecordingRunner()
    core, _, _ = make_core(runner, threshold=1)
    for name in "abc":
        core.submit(request(name))
    run(core)
    assert runner.calls[:4] == [
        ("prefill", 0, 5),
        ("prefill", 1, 5),
        ("prefill", 2, 5),
        ("decode", 0, 1, 2),
    ]


def test_decode_is_ordered_by_slot_and_the_lowest_free_slot_is_taken():
    runner = RecordingRunner()
    core, _, _ = make_core(runner)
    for name, max_tokens in [("a", 3), ("b", 9), ("c", 9), ("d", 9)]:
        core.submit(request(name, max_tokens=max_tokens))
    run(core)
    decodes = [call[1:] for call in runner.calls if call[0] == "decode"]
    assert decodes == [tuple(sorted(slots)) for slots in decodes]
    assert ("prefill", 0, 5) in runner.calls[3:]  # "d" took the slot that "a" left


def test_an_end_token_is_neither_text_nor_counted():
    runner = RecordingRunner()
    core, _, _ = make_core(runner)
    runner.is_end = lambda token: token == 2  # type: ignore[method-assign]
    core.submit(request("a", max_tokens=50))
    updates = run(core)
    finished = updates[-1].finished
    assert finished is not None
    assert (finished.reason, finished.completion_tokens) == (FinishReason.STOP, 2)


def test_end_tokens_are_ignored_when_asked():
    runner = RecordingRunner()
    core, _, _ = make_core(runner)
    runner.is_end = lambda token: token == 2  # type: ignore[method-assign]
    core.submit(request("a", max_tokens=5, ignore_eos=True))
    finished = run(core)[-1].finished
    assert finished is not None
    assert finished.completion_tokens == 5


def test_a_stop_string_ends_the_generation_without_leaking():
    core, _, _ = make_core(RecordingRunner())
    core.submit(request("a", max_tokens=50, stop=("2><3",)))
    updates = run(core)
    assert texts(updates) == {"a": "<0><1><"}
    assert updates[-1].finished is not None
    assert updates[-1].finished.reason is FinishReason.STOP


def test_a_full_queue_refuses_with_a_time_to_retry():
    core, _, _ = make_core(RecordingRunner(), max_waiting=1)
    for index in range(5):
        core.submit(request(str(index)))
    failed = [update.failed for update in core.take_updates() if update.failed is not None]
    assert [error.reason for error in failed] == [Reason.OVERLOADED]
    assert failed[0].retry_after_ms >= 500
    assert len({u.key for u in run(core) if u.is_terminal}) == 4


def test_a_request_id_in_use_is_refused():
    core, _, _ = make_core(RecordingRunner())
    core.submit(request("a"))
    core.submit(request("a"))
    failed = [u.failed for u in core.take_updates() if u.failed is not None]
    assert failed[0].param == "request_id"


def test_higher_priority_runs_first():
    runner = RecordingRunner()
    core, scheduler, _ = make_core(runner, max_waiting=9)
    for name, priority in [("low", 0), ("high", 5), ("also_low", 0)]:
        core.submit(request(name, priority=priority))
    assert [s.request.key.request_id for s in scheduler.waiting] == ["high", "low", "also_low"]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_cancelling_frees_the_slot_in_queue_prefill_and_decode(steps):
    runner = RecordingRunner()
    core, scheduler, _ = make_core(runner)
    core.submit(request("a", prompt=200, max_tokens=50))
    for _ in range(steps):
        core.step()
    core.take_updates()
    core.cancel(RequestKey(1, "a"))
    assert not core.has_work
    assert not core.take_updates()
    assert runner.kv == [0, 0, 0]
    scheduler.check_integrity()


def test_closing_a_session_drops_only_its_requests():
    core, _, _ = make_core(RecordingRunner())
    core.submit(request("a"))
    core.submit(replace(request("a"), key=RequestKey(2, "a")))
    core.take_updates()
    core.cancel_session(1)
    assert {update.key.session_id for update in run(core)} == {2}


def test_a_passed_deadline_fails_the_request():
    core, _, clock = make_core(RecordingRunner())
    core.submit(request("a", deadline_unix_s=5.0, max_tokens=900))
    core.step()
    clock.now_s = 6.0
    failed = run(core)[-1].failed
    assert failed is not None
    assert failed.reason is Reason.DEADLINE_EXCEEDED


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 400), st.integers(1, 6), st.integers(0, 2)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("step"), st.integers(1, 5)),
        st.tuples(st.just("close"), st.integers(0, 2)),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(EVENTS)
def test_any_sequence_of_events_keeps_slots_and_ends_each_request_once(events):
    runner = RecordingRunner()
    core, scheduler, _ = make_core(runner, max_waiting=3, threshold=2)
    keys: list[RequestKey] = []
    cancelled: set[RequestKey] = set()
    updates = []
    for event in events:
        if event[0] == "submit":
            key = RequestKey(event[3], str(len(keys)))
            keys.append(key)
            core.submit(replace(request("", prompt=event[1], max_tokens=event[2]), key=key))
        elif event[0] == "cancel" and event[1] < len(keys):
            core.cancel(keys[event[1]])
            cancelled.add(keys[event[1]])
        elif event[0] == "close":
            core.cancel_session(event[1])
            cancelled |= {key for key in keys if key.session_id == event[1]}
        elif event[0] == "step":
            for _ in range(event[1]):
                core.step()
        scheduler.check_integrity()
        updates += core.take_updates()
    updates += run(core)
    assert all(sampler.num_closed == 1 for sampler in runner.samplers)
    ended = [update.key for update in updates if update.is_terminal]
    assert len(ended) == len(set(ended))
    assert set(keys) - cancelled <= set(ended)
    assert runner.kv == [0, 0, 0]
    for key in set(ended) - cancelled:
        mine = [u for u in updates if u.key == key]
        if mine[-1].finished is not None:
            tokens = [t.token for u in mine for t in u.tokens]
            assert tokens == list(range(len(tokens)))
            assert len(tokens) == mine[-1].finished.completion_tokens


def test_computing_is_shared_by_the_sequences_of_a_step_and_adds_up():
    core, _, _ = make_core(RecordingRunner())
    for name in ("a", "b", "c"):
        core.submit(request(name, max_tokens=10))
    timings = {u.key.request_id: u.finished.timings for u in run(core) if u.finished}
    total_ms = core.load().counters["compute_seconds"] * 1e3
    assert sum(each.compute_ms for each in timings.values()) == pytest.approx(total_ms)
    assert all(0 < each.compute_ms < each.busy_ms for each in timings.values())


def test_a_request_alone_is_charged_all_that_the_engine_computed():
    core, _, _ = make_core(RecordingRunner())
    core.submit(request("before"))
    run(core)
    core.submit(request("a", prompt=300))
    timings = run(core)[-1].finished.timings
    assert timings.compute_ms == pytest.approx(timings.busy_ms)
