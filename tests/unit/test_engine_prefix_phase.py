"""Sequences that wait for a prefix, in a core whose store the test decides."""

from __future__ import annotations

from dataclasses import replace

from agent.config import BLOCK_TOKENS
from agent.engine.core import EngineCore
from agent.engine.meter import Clocks
from agent.engine.policy import BatchingPolicy
from agent.engine.request import RequestKey
from agent.engine.scheduler import Scheduler
from agent.engine.sequence import Phase, Sequence
from agent.kv.sharing import NotShared, SharingState
from shoal.kv_sharing import SharePolicy
from tests.unit.test_engine_core import Clock, RecordingRunner, request, run, texts


class ScriptedStore:
    """Holds back the sequences named in `late`; gives `blocks` blocks to those in `hits`."""

    def __init__(self, runner: RecordingRunner) -> None:
        self.late: set[str] = set()
        self.hits: dict[str, int] = {}
        self.events: list[tuple[str, str]] = []
        self.speeds: list[float] = []
        self.closed = False
        self._runner = runner

    def prepare(self, sequence: Sequence, prefill_tokens_per_s: float) -> bool:
        self.speeds.append(prefill_tokens_per_s)
        return _name(sequence) not in self.late

    def restore(self, sequence: Sequence) -> None:
        num_tokens = self.hits.get(_name(sequence), 0) * BLOCK_TOKENS
        sequence.num_computed = num_tokens
        sequence.cached_by_tier = {"host": num_tokens} if num_tokens else {}
        assert sequence.slot is not None
        self._runner.kv[sequence.slot] = num_tokens

    def prefilled(self, sequence: Sequence) -> None:
        self.events.append(("prefilled", _name(sequence)))

    def settle(self) -> None:
        self.events.append(("settle", ""))

    def end(self, sequence: Sequence) -> None:
        self.events.append(("end", _name(sequence)))
        if sequence.slot is not None:  # its blocks can still be copied
            assert self._runner.kv[sequence.slot] == sequence.num_computed

    def park(self, sequence: Sequence) -> bool:
        return False

    def resume(self, sequence: Sequence) -> bool:
        return False

    def next_deadline_s(self) -> float | None:
        return 7.0 if self.late else None

    def sharing(self) -> SharingState:
        return SharingState(SharePolicy.ALWAYS, 0, NotShared.NO_SHARED_TIER)

    def counters(self) -> dict[str, float]:
        return {"kv_host_bytes": 5.0, "kv_disk_bytes": 6.0}

    def close(self) -> None:
        self.closed = True


def _name(sequence: Sequence) -> str:
    return sequence.request.key.request_id


def make_core() -> tuple[EngineCore, ScriptedStore, Scheduler, RecordingRunner]:
    runner = RecordingRunner()
    store = ScriptedStore(runner)
    clock = Clock()
    scheduler = Scheduler(runner.slots, 8, BatchingPolicy(4, 4))
    core = EngineCore(runner, scheduler, Clocks(clock, clock), store, prefill_tokens_per_s=300.0)
    return core, store, scheduler, runner


def test_a_restored_prefix_is_not_computed_and_is_counted():
    core, store, _, runner = make_core()
    store.hits["a"] = 2
    core.submit(request("a", prompt=300, max_tokens=1))
    finished = run(core)[-1].finished
    assert runner.calls == [("prefill", 0, 44)]
    assert finished is not None
    assert finished.cached_tokens_by_tier == {"host": 256}
    counters = core.load().counters
    assert (counters["prompt_tokens_cached"], counters["prompt_tokens_computed"]) == (256, 44)


def test_who_waits_for_a_prefix_holds_no_slot_and_those_behind_go_first():
    core, store, scheduler, _ = make_core()
    store.late.add("late")
    for name in ("late", "b", "c", "d"):
        core.submit(request(name))
    core.step()
    assert [_name(s) for s in scheduler.running] == ["b", "c", "d"]
    assert [(_name(s), s.phase) for s in scheduler.waiting] == [("late", Phase.RESTORING)]
    while scheduler.running or scheduler.leaving:
        core.step()
    assert core.has_work
    assert not core.can_compute  # the loop sleeps until it is woken, or this is due:
    assert core.next_deadline_s() == 7.0
    store.late.clear()
    assert texts(run(core))["late"] == "<0><1><2><3>"
    scheduler.check_integrity()


def test_who_waits_can_be_cancelled_and_can_pass_its_deadline():
    core, store, _, _ = make_core()
    store.late |= {"a", "b"}
    core.submit(request("a"))
    core.submit(request("b", deadline_unix_s=-1.0))
    core.step()
    core.cancel(RequestKey(1, "a"))
    updates = run(core) + core.take_updates()
    assert [u.key.request_id for u in updates if u.failed is not None] == ["b"]
    assert {name for event, name in store.events if event == "end"} == {"a", "b"}
    assert not core.has_work


def test_each_sequence_ends_in_the_store_once_before_its_slot_is_emptied():
    core, store, _, _ = make_core()
    for name in "abcde":
        core.submit(replace(request(name, prompt=200), max_tokens=3))
    core.step()
    core.cancel(RequestKey(1, "a"))
    run(core)
    ended = [name for event, name in store.events if event == "end"]
    assert sorted(ended) == list("abcde")
    order = [event for event, _ in store.events]
    assert order.index("settle") < order.index("prefilled")


def test_measured_speed_is_told_until_work_itself_tells():
    core, store, _, _ = make_core()
    core.submit(request("a", prompt=200, max_tokens=1))
    run(core)
    core.submit(request("b", prompt=200, max_tokens=1))
    run(core)
    assert store.speeds[0] == 300.0
    assert store.speeds[-1] not in (0.0, 300.0)


def test_sizes_are_reported_and_closing_reaches_the_store():
    core, store, _, _ = make_core()
    load = core.load()
    assert (load.host_kv_bytes, load.disk_kv_bytes) == (5, 6)
    core.close()
    assert store.closed
