"""The queue's bounds and refusals; then random histories against its invariants."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.queueing.drain_rate import WINDOW, DrainRate
from orchestrator.queueing.entry import Entry, Lane, Size, entry_of
from orchestrator.queueing.waiting_queue import Backlog, QueueLimits, WaitingQueue
from orchestrator.request import RouteRequest, Slo, SloMiss
from shoal.errors import Reason, ShoalError

UNIX_MS = 1_700_000_000_000
BUSY = Backlog(gap_ms=100.0, ttft_ms=50.0, sure_share=0.75)
LOADING = Backlog(gap_ms=None, ttft_ms=0.0, sure_share=0.75)


def entry(
    name: str,
    now_ms: float = 0.0,
    *,
    model: str = "m",
    prompt_bytes: int = 400,
    ttft_ms: float | None = None,
    on_slo_miss: SloMiss = SloMiss.UNSTATED,
    tenant: str = "t",
    priority: int = 0,
    deadline_in_ms: int = 0,
) -> Entry:
    request = RouteRequest(
        name,
        tenant,
        model,
        prompt_bytes,
        slo=Slo(ttft_ms=ttft_ms),
        on_slo_miss=on_slo_miss,
        priority=priority,
        deadline_unix_ms=UNIX_MS + deadline_in_ms if deadline_in_ms else 0,
    )
    return entry_of(request, Size(100, 100.0), now_ms, UNIX_MS)


def filled(num: int, limits: QueueLimits | None = None, tenant: str = "t") -> WaitingQueue:
    """A queue of requests that are more urgent than those of priority 0."""
    queue = WaitingQueue(limits)
    for number in range(num):
        queue.offer(entry(f"{tenant}{number}", tenant=tenant, priority=5), BUSY, 0.0)
    return queue


def refusal_of(queue: WaitingQueue, late: Entry, now_ms: float = 0.0) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        queue.offer(late, BUSY, now_ms)
    return caught.value


def test_objective_that_the_queue_cannot_meet_is_refused_at_once_with_figures() -> None:
    error = refusal_of(filled(10), entry("late", ttft_ms=1_000))
    assert error.reason is Reason.OVERLOADED
    # Ten before it and its own place, 100 ms each, then 50 ms on the device.
    assert error.foreseen is not None
    assert error.foreseen.ttft_ms == pytest.approx(1_150)
    assert "1150 ms" in error.message
    assert error.retry_after_ms == pytest.approx(400, abs=1)  # until within 75 % of it again


def test_share_of_its_time_that_may_be_predicted_is_the_callers() -> None:
    # Its own place and 50 ms on the device: 150 ms of 250.
    queue, wish = WaitingQueue(), entry("r", ttft_ms=250)
    with pytest.raises(ShoalError) as caught:
        queue.offer(wish, replace(BUSY, sure_share=0.5), 0.0)
    assert caught.value.retry_after_ms == 250  # the least that anybody is told
    queue.offer(wish, BUSY, 0.0)
    assert len(queue) == 1


def test_who_asked_to_be_refused_is_told_that_the_objective_is_out_of_reach() -> None:
    late = entry("late", ttft_ms=1_000, on_slo_miss=SloMiss.REFUSE)
    error = refusal_of(filled(10), late)
    assert (error.reason, error.http_status) == (Reason.SLO_UNREACHABLE, 503)


def test_who_asked_for_best_effort_waits_past_the_objective() -> None:
    queue = filled(10)
    queue.offer(entry("late", ttft_ms=1_000, on_slo_miss=SloMiss.BEST_EFFORT), BUSY, 0.0)
    assert len(queue) == 11


def test_urgent_request_is_judged_by_its_own_place_and_not_by_the_end_of_the_queue() -> None:
    queue = filled(50)
    queue.offer(entry("urgent", ttft_ms=1_000, priority=50), BUSY, 0.0)
    assert queue.next("m", 0.0) == entry("urgent", ttft_ms=1_000, priority=50)


def test_other_tenants_long_queue_is_not_counted_in_full() -> None:
    queue = filled(50)
    queue.offer(entry("mine", ttft_ms=1_000, tenant="other"), BUSY, 0.0)
    assert len(queue) == 51


def test_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    error = refusal_of(filled(10), entry("late", deadline_in_ms=500))
    assert error.reason is Reason.OVERLOADED


def test_nobody_is_let_in_to_wait_longer_than_the_limit() -> None:
    limits = QueueLimits(max_wait_ms=1_000)
    error = refusal_of(filled(10, limits), entry("late"), 0.0)
    assert "predicted after" in error.message
    assert error.retry_after_ms == 250


def test_retry_after_grows_with_the_queue_and_with_the_measured_pace() -> None:
    queue = filled(20, QueueLimits(max_requests=20))
    before = refusal_of(queue, entry("a")).retry_after_ms
    assert before == pytest.approx(20 * 100, rel=0.01)
    now_ms = 0.0
    for _ in range(10):
        now_ms += 1_000.0
        queue.take(queue.next("m", now_ms).request_id, now_ms)  # type: ignore[union-attr]
    for number in range(10):
        queue.offer(entry(f"new{number}", now_ms), BUSY, now_ms)
    assert refusal_of(queue, entry("b", now_ms), now_ms).retry_after_ms > 5 * before


def test_one_tenants_flood_refuses_only_its_own() -> None:
    queue = filled(10, QueueLimits(max_requests=10), tenant="flood")
    put_out = [e.request_id for n in range(4)
               for e in queue.offer(entry(f"other{n}", tenant="other"), BUSY, 0.0)]  # fmt: skip
    assert put_out == ["flood9", "flood8", "flood7", "flood6"]
    error = refusal_of(queue, entry("flood10", tenant="flood"))
    assert "queue is full" in error.message


def test_prompts_that_wait_are_bounded_in_bytes() -> None:
    queue = WaitingQueue(QueueLimits(max_prompt_bytes=1_000))
    queue.offer(entry("a", prompt_bytes=600), BUSY, 0.0)
    assert "queue is full" in refusal_of(queue, entry("b", prompt_bytes=600)).message
    queue.offer(entry("c", prompt_bytes=400), BUSY, 0.0)
    assert "queue is full" in refusal_of(queue, entry("d", prompt_bytes=2_000)).message
    assert queue.prompt_bytes == 1_000


def test_while_all_devices_are_loading_nobody_is_refused_for_a_pace_that_nobody_knows() -> None:
    queue = WaitingQueue()
    for number in range(100):
        queue.offer(entry(f"r{number}"), LOADING, 0.0)
    assert len(queue) == 100


def test_who_cannot_be_served_in_time_any_more_is_found() -> None:
    queue = WaitingQueue(QueueLimits(max_wait_ms=10_000))
    queue.offer(entry("strict", ttft_ms=1_000), BUSY, 0.0)
    queue.offer(entry("patient"), BUSY, 0.0)
    assert queue.expired(950.0) == []
    assert [e.request_id for e, _ in queue.expired(951.0)] == ["strict"]
    assert [e.request_id for e, _ in queue.expired(10_001.0)] == ["strict", "patient"]


def test_pace_follows_measurement_and_slows_while_nothing_moves() -> None:
    rate = DrainRate(1_000.0, 0.0)
    assert rate.gap_ms(0.0) == 1_000.0
    for number in range(2 * WINDOW):
        rate.departed(number * 50.0)
    now_ms = (2 * WINDOW - 1) * 50.0
    assert rate.gap_ms(now_ms) == pytest.approx(50.0)
    assert rate.gap_ms(now_ms + 1_600.0) == pytest.approx(100.0)


_acts = st.lists(
    st.tuples(
        st.sampled_from(["offer", "offer", "offer", "take", "cancel", "expire", "wait"]),
        st.integers(0, 30),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["m", "n"]),
        st.sampled_from([None, 300.0, 2_000.0]),
        st.integers(-10, 10),
    ),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(_acts)
def test_any_history_loses_nobody_and_keeps_the_bounds(
    acts: list[tuple[str, int, str, str, float | None, int]],
) -> None:
    limits = QueueLimits(max_requests=12, max_prompt_bytes=6_000, max_wait_ms=4_000)
    queue = WaitingQueue(limits)
    now_ms, generation = 0.0, 0
    waiting: set[str] = set()
    retries_ms: list[int] = []
    offered = served = refused = ended = 0
    for kind, number, tenant, model, ttft_ms, priority in acts:
        if kind == "offer":
            generation += 1
            name = f"r{generation}"
            new = entry(
                name, now_ms, model=model, tenant=tenant, ttft_ms=ttft_ms, priority=priority,
                prompt_bytes=100 * number,
            )  # fmt: skip
            offered += 1
            try:
                put_out = queue.offer(new, BUSY if number % 5 else LOADING, now_ms)
            except ShoalError as error:
                refused += 1
                retries_ms.append(error.retry_after_ms)
            else:
                waiting.add(name)
                refused += len(put_out)
                waiting -= {each.request_id for each in put_out}
        elif kind == "take":
            blocked = {Lane(model)} if number == 0 else set()
            next_entry = queue.next(model, now_ms, blocked)
            assert next_entry is None or next_entry.lane.model == model
            if next_entry is not None:
                queue.take(next_entry.request_id, now_ms)
                waiting.remove(next_entry.request_id)
                served += 1
        elif kind == "cancel":
            name = f"r{number}"
            assert queue.remove(name) == (name in waiting)
            ended += name in waiting
            waiting.discard(name)
        elif kind == "expire":
            for late, _ in queue.expired(now_ms):
                queue.remove(late.request_id)
                waiting.remove(late.request_id)
                ended += 1
        else:
            now_ms += 100.0 * number
        queue.check_integrity()
        assert {name for name in waiting if name in queue} == waiting
        assert len(queue) == len(waiting)
    assert offered == served + refused + ended + len(waiting)
    assert all(250 <= retry_ms <= 60_000 for retry_ms in retries_ms)
