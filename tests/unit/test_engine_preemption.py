"""Sequences that leave their slot for more urgent ones, and come back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.engine.core import EngineCore
from agent.engine.meter import Clocks
from agent.engine.policy import BatchingPolicy
from agent.engine.preemption import PROGRESS_TOKENS
from agent.engine.request import RequestKey
from agent.engine.scheduler import Scheduler
from agent.engine.sequence import Phase, Sequence
from shoal.errors import Reason
from tests.unit.test_engine_core import Clock, RecordingRunner, request, run, texts
from tests.unit.test_engine_prefix_phase import ScriptedStore


class ParkingStore(ScriptedStore):
    """Holds the parked up to `room`; those named in `lost` do not come back."""

    def __init__(self, runner: RecordingRunner) -> None:
        super().__init__(runner)
        self.room = 99
        self.lost: set[str] = set()
        self.parked: dict[Sequence, int] = {}
        self.most_parked = 0
        self._runner = runner

    def park(self, sequence: Sequence) -> bool:
        assert sequence not in self.parked
        assert self._runner.kv[sequence.slot] == sequence.num_computed
        if len(self.parked) >= self.room:
            return False
        self.parked[sequence] = sequence.num_computed
        self.most_parked = max(self.most_parked, len(self.parked))
        return True

    def resume(self, sequence: Sequence) -> bool:
        self._runner.kv[sequence.slot] = num_tokens = self.parked.pop(sequence)
        if sequence.request.key.request_id in self.lost:
            self._runner.kv[sequence.slot] = 0
            return False
        assert num_tokens == sequence.num_computed
        return True

    def end(self, sequence: Sequence) -> None:
        super().end(sequence)
        self.parked.pop(sequence, None)


class Rig:
    def __init__(self, *, caching: bool = True) -> None:
        self.runner = RecordingRunner()
        self.store = ParkingStore(self.runner)
        self.clock = Clock()
        self.scheduler = Scheduler(self.runner.slots, 30, BatchingPolicy(4, 4))
        clocks = Clocks(self.clock, self.clock)
        store = self.store if caching else None
        self.core = EngineCore(self.runner, self.scheduler, clocks, store)

    def fill(self, **changes) -> None:
        """All slots run low0, low1, low2, past the progress that parking asks for."""
        for index in range(self.runner.slots):
            self.core.submit(request(f"low{index}", **{"max_tokens": 60, **changes}))
        self.steps(2 * self.runner.slots + PROGRESS_TOKENS)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.core.step()
            self.scheduler.check_integrity()

    def running(self) -> list[str]:
        return [s.request.key.request_id for s in self.scheduler.running]

    def parked(self) -> list[str]:
        return [s.request.key.request_id for s in self.scheduler.waiting if s.phase is Phase.PARKED]


def whole(num_tokens: int) -> str:
    return "".join(f"<{token}>" for token in range(num_tokens))


def test_the_least_recently_started_leaves_for_a_more_urgent_one_and_ends_as_if_it_had_not():
    rig = Rig()
    rig.fill()
    rig.core.submit(request("urgent", priority=1, max_tokens=3))
    rig.steps(1)
    assert rig.parked() == ["low0"]
    assert rig.running() == ["low1", "low2", "urgent"]
    updates = rig.core.take_updates() + run(rig.core)
    said = texts(updates)
    assert said == {"urgent": whole(3), **{f"low{i}": whole(60) for i in range(3)}}
    order = [u.key.request_id for u in updates if u.finished]
    assert order[0] == "urgent"
    counters = rig.core.load().counters
    assert counters["preemptions"] == 1
    assert counters["preempted_tokens_restored"] >= PROGRESS_TOKENS
    assert all(sampler.num_closed == 1 for sampler in rig.runner.samplers)


def test_the_lowest_priority_leaves_first():
    rig = Rig()
    for name, priority in [("a", 2), ("b", 1), ("c", 2)]:
        rig.core.submit(request(name, priority=priority, max_tokens=60))
    rig.steps(30)
    rig.core.submit(request("urgent", priority=3))
    rig.steps(1)
    assert rig.parked() == ["b"]


def test_equal_priority_preempts_nobody():
    rig = Rig()
    rig.fill()
    rig.core.submit(request("same"))
    rig.steps(5)
    assert rig.parked() == []
    assert "same" not in rig.running()


def test_another_tenants_priority_preempts_only_what_is_negative():
    rig = Rig()
    rig.fill(tenant="a")
    rig.core.submit(request("pushy", priority=9, tenant="b"))
    rig.steps(5)
    assert rig.parked() == []
    rig = Rig()
    rig.fill(tenant="a", priority=-1)
    rig.core.submit(request("normal", tenant="b"))
    rig.steps(1)
    assert rig.parked() == ["low0"]


def test_the_parked_comes_back_before_new_requests_of_its_priority():
    rig = Rig()
    rig.fill()
    rig.core.submit(request("new"))
    rig.core.submit(request("urgent", priority=1, max_tokens=2))
    rig.steps(1)
    waiting = [s.request.key.request_id for s in rig.scheduler.waiting]
    assert waiting == ["low0", "new"]


def test_who_came_back_is_not_parked_again_before_it_made_progress():
    rig = Rig()
    rig.fill(max_tokens=900)
    progress: list[int] = []
    for number in range(40):
        rig.core.submit(request(f"urgent{number}", priority=1, max_tokens=2))
        before = {s.request.key.request_id: s.num_computed for s in rig.scheduler.running}
        at_start = {s.request.key.request_id: s.parkable_from for s in rig.scheduler.running}
        rig.steps(1)
        progress += [before[name] - at_start[name] for name in rig.parked() if name in before]
        rig.steps(3)
    assert len(progress) >= 4
    assert min(progress) >= 0


def test_an_interrupted_prefill_goes_on_where_it_was():
    rig = Rig()
    for index in range(3):
        rig.core.submit(request(f"low{index}", prompt=500))
    rig.steps(3)
    rig.core.submit(request("urgent", priority=1))
    rig.steps(1)
    assert rig.parked() == ["low0"]
    assert texts(run(rig.core)) == dict.fromkeys(["urgent", "low0", "low1", "low2"], whole(4))
    assert sum(call[2] for call in rig.runner.calls if call[0] == "prefill") == 1505


def test_without_a_cache_and_without_room_nobody_is_preempted():
    without = Rig(caching=False)
    full = Rig()
    full.store.room = 0
    for rig in (without, full):
        rig.fill()
        rig.core.submit(request("urgent", priority=1))
        rig.steps(4)
        assert rig.parked() == []
        assert set(texts(run(rig.core)).values()) == {whole(60), whole(4)}
    assert full.core.load().counters["preemptions_without_room"] <= 3 * 4


def test_a_decode_that_is_lost_fails_and_a_prefill_that_is_lost_starts_anew():
    for prompt, num_steps, failed in [(5, 30, [Reason.ENGINE_CRASHED]), (500, 3, [])]:
        rig = Rig()
        rig.store.lost.add("low0")
        for index in range(3):
            rig.core.submit(request(f"low{index}", prompt=prompt, max_tokens=60))
        rig.steps(num_steps)
        rig.core.submit(request("urgent", priority=1, max_tokens=1))
        rig.steps(1)
        assert rig.parked() == ["low0"]
        updates = run(rig.core)
        assert [u.failed.reason for u in updates if u.failed] == failed
        assert rig.runner.kv == [0, 0, 0]
        assert all(sampler.num_closed == 1 for sampler in rig.runner.samplers)


@pytest.mark.parametrize("how", ["cancel", "deadline", "session"])
def test_the_parked_can_be_cancelled_and_can_pass_its_deadline(how):
    rig = Rig()
    rig.fill(deadline_unix_s=50.0)
    rig.core.submit(request("urgent", priority=1, max_tokens=50))
    rig.steps(1)
    assert rig.parked() == ["low0"]
    if how == "cancel":
        rig.core.cancel(RequestKey(1, "low0"))
    elif how == "session":
        rig.core.cancel_session(1)
    else:
        rig.clock.now_s = 51.0
        rig.steps(1)
    rig.scheduler.check_integrity()
    assert rig.parked() == []
    assert not rig.store.parked
    run(rig.core)
    assert all(sampler.num_closed == 1 for sampler in rig.runner.samplers)


def test_being_parked_counts_as_waiting_and_not_as_slow_decoding():
    rig = Rig()
    rig.fill()
    rig.core.submit(request("urgent", priority=1, max_tokens=50))
    rig.steps(1)
    rig.clock.now_s += 100.0
    timings = {u.key.request_id: u.finished.timings for u in run(rig.core) if u.finished}
    assert timings["low0"].tpot_ms < 100.0 < 100_000.0 < timings["low0"].total_ms
    assert timings["low1"].tpot_ms > 1000.0


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 400), st.integers(1, 60), st.integers(-2, 2)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 40), st.just(0), st.just(0)),
        st.tuples(st.just("room"), st.integers(0, 3), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(EVENTS)
def test_any_sequence_of_events_ends_each_request_once_with_its_whole_text(events):
    rig = Rig()
    keys: list[RequestKey] = []
    cancelled: set[RequestKey] = set()
    updates = []
    for kind, first, max_tokens, priority in events:
        if kind == "submit":
            keys.append(RequestKey(1, str(len(keys))))
            asked = request("", prompt=first, max_tokens=max_tokens, priority=priority)
            tenant = "ab"[len(keys) % 2]
            rig.core.submit(replace(asked, key=keys[-1], tenant=tenant))
        elif kind == "cancel" and first < len(keys):
            rig.core.cancel(keys[first])
            cancelled.add(keys[first])
        elif kind == "room":
            rig.store.room = first
        elif kind == "step":
            rig.steps(first)
        rig.scheduler.check_integrity()
        assert set(rig.store.parked) == {
            s for s in rig.scheduler.waiting if s.phase is Phase.PARKED
        }
        updates += rig.core.take_updates()
    updates += run(rig.core)
    ended = [u.key for u in updates if u.is_terminal]
    assert len(ended) == len(set(ended))
    assert set(keys) - cancelled <= set(ended)
    assert not rig.store.parked
    assert rig.runner.kv == [0, 0, 0]
    assert all(sampler.num_closed == 1 for sampler in rig.runner.samplers)
    said = texts(updates)
    for update in updates:
        if update.finished is not None:
            assert said[update.key.request_id] == whole(update.finished.completion_tokens)
