"""Whose turn it is: urgency, ageing, and shares among tenants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.queueing.entry import MAX_SLACK_MS, MS_PER_PRIORITY, Entry, Lane, Size, entry_of
from orchestrator.queueing.fair_queue import FairQueue
from orchestrator.request import RouteRequest, Slo, SloMiss

MODEL = "m"


def waiting(
    name: str, arrived_ms: float = 0.0, *, prompt_tokens: int = 100, **fields: Any
) -> Entry:
    request = RouteRequest(name, fields.pop("tenant", "t"), MODEL, 400, **fields)
    return entry_of(request, Size(prompt_tokens, 100.0), arrived_ms, 1e12 + arrived_ms)


def order(queue: FairQueue, now_ms: float = 0.0) -> list[str]:
    names = []
    while (entry := queue.next(now_ms)) is not None:
        names.append(queue.take(entry.request_id).request_id)
    return names


def queue_of(*entries: Entry, now_ms: float = 0.0) -> FairQueue:
    queue = FairQueue()
    for entry in entries:
        queue.add(entry, now_ms)
    return queue


def test_requests_that_are_alike_go_in_the_order_of_arrival() -> None:
    assert order(queue_of(*(waiting(f"r{n}", n) for n in range(5)))) == [
        "r0", "r1", "r2", "r3", "r4",
    ]  # fmt: skip


def test_tighter_objective_goes_first() -> None:
    relaxed = waiting("relaxed", slo=Slo(ttft_ms=5_000))
    tight = waiting("tight", 100, slo=Slo(ttft_ms=500))
    assert order(queue_of(relaxed, tight)) == ["tight", "relaxed"]


def test_deadline_counts_like_an_objective() -> None:
    patient = waiting("patient", deadline_unix_ms=int(1e12) + 600_000)
    pressed = waiting("pressed", 10, deadline_unix_ms=int(1e12) + 400)
    assert order(queue_of(patient, pressed)) == ["pressed", "patient"]


def test_long_prompt_lets_a_short_one_that_came_later_go_first_but_not_for_ever() -> None:
    long = waiting("long", 0, prompt_tokens=4_000)
    soon = waiting("soon", 2_000, prompt_tokens=20)
    late = waiting("late", MAX_SLACK_MS, prompt_tokens=20)
    assert order(queue_of(long, soon, late)) == ["soon", "long", "late"]


def test_priority_goes_first_until_the_others_have_waited_longer() -> None:
    old = waiting("old", 0)
    urgent = waiting("urgent", 9 * MS_PER_PRIORITY, priority=10)
    too_new = waiting("too-new", 11 * MS_PER_PRIORITY, priority=10)
    assert order(queue_of(old, urgent, too_new)) == ["urgent", "old", "too-new"]


def test_negative_priority_yields_to_other_tenants_until_it_has_waited_its_time() -> None:
    background = waiting("background", 0, priority=-5, tenant="batch")
    entries = [background, *(waiting(f"r{n}", n + 1, tenant="chat") for n in range(3))]
    assert order(queue_of(*entries), 4_999) == ["r0", "r1", "r2", "background"]
    assert "background" in order(queue_of(*entries), 5_000)[:2]


def test_calling_everything_urgent_gains_a_tenant_nothing() -> None:
    loud = [waiting(f"loud{n}", n, tenant="loud", priority=100) for n in range(20)]
    quiet = [waiting(f"quiet{n}", n, tenant="quiet") for n in range(20)]
    first_half = order(queue_of(*loud, *quiet))[:20]
    assert 9 <= sum(name.startswith("quiet") for name in first_half) <= 11


def test_tenant_that_had_nothing_waiting_is_next_and_has_saved_up_nothing() -> None:
    queue = queue_of(*(waiting(f"busy{n}", n, tenant="busy") for n in range(10)))
    for _ in range(5):
        queue.take(queue.next(0).request_id)  # type: ignore[union-attr]
    for number in range(5):
        queue.add(waiting(f"new{number}", tenant="new"), 0)
    order_from_now = order(queue)
    assert "new0" in order_from_now[:2]
    assert sum(name.startswith("new") for name in order_from_now[:6]) in (3, 4)


def test_tenant_that_asks_one_at_a_time_is_charged_too() -> None:
    queue = queue_of(*(waiting(f"busy{n}", n, tenant="busy") for n in range(20)))
    served = []
    for number in range(10):
        if queue.num_of("single") == 0:
            queue.add(waiting(f"single{number}", tenant="single"), 0)
        served.append(queue.take(queue.next(0).request_id).tenant)  # type: ignore[union-attr]
    assert 4 <= served.count("single") <= 6


def test_blocked_lane_holds_up_no_other() -> None:
    pinned = waiting("pinned", 0, device="d1")
    free = waiting("free", 1)
    queue = queue_of(pinned, free)
    assert queue.next(0).request_id == "pinned"  # type: ignore[union-attr]
    assert queue.next(0, {Lane(MODEL, "d1")}).request_id == "free"  # type: ignore[union-attr]
    assert queue.next(0, {Lane(MODEL, "d1"), Lane(MODEL)}) is None


def test_only_who_did_not_ask_for_best_effort_has_a_latest_first_token() -> None:
    slo = Slo(ttft_ms=500)
    assert waiting("a", 10, slo=slo).latest_first_token_ms == 510
    best_effort = waiting("b", 10, slo=slo, on_slo_miss=SloMiss.BEST_EFFORT)
    assert best_effort.latest_first_token_ms == float("inf")


_weights = st.sampled_from([0.5, 1.0, 3.0])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(_weights, st.lists(st.integers(1, 2_000), min_size=30, max_size=60)),
        min_size=2,
        max_size=4,
    )
)
def test_tokens_served_are_in_proportion_to_the_weights(
    tenants: list[tuple[float, list[int]]],
) -> None:
    """Start-time fair queueing's bound, while all of the tenants have something waiting."""
    queue = FairQueue()
    for tenant, (weight, costs) in enumerate(tenants):
        for number, cost in enumerate(costs):
            entry = waiting(f"{tenant}-{number}", number, tenant=str(tenant))
            queue.add(replace(entry, weight=weight, cost_tokens=float(cost)), 0)
    shares = [0.0] * len(tenants)
    while all(queue.num_of(str(tenant)) for tenant in range(len(tenants))):
        entry = queue.take(queue.next(0).request_id)  # type: ignore[union-attr]
        shares[int(entry.tenant)] += entry.cost_tokens / entry.weight
    largest = [max(costs) / weight for weight, costs in tenants]
    for one in range(len(tenants)):
        for other in range(len(tenants)):
            assert abs(shares[one] - shares[other]) <= largest[one] + largest[other]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 5_000)), max_size=120))
def test_nobody_starves_behind_newcomers(newcomers: list[tuple[int, int]]) -> None:
    """Two newcomers arrive for each one served, however urgent: the old one still goes."""
    queue = queue_of(waiting("old", 0, priority=-20, prompt_tokens=5_000))
    now_ms = 0.0
    bound_ms = 40 * MS_PER_PRIORITY + MAX_SLACK_MS
    arrivals = iter(newcomers)
    while "old" in queue:
        for _ in range(2):
            # The list is the irregular part; after it they come for ever.
            priority, prompt_tokens = next(arrivals, (20, 10))
            entry = waiting(
                f"n{now_ms}-{len(queue)}", now_ms, priority=priority, prompt_tokens=prompt_tokens
            )
            queue.add(entry, now_ms)
        now_ms += 250
        queue.take(queue.next(now_ms).request_id)  # type: ignore[union-attr]
        # Those who came before the bound may all go first; they are twice what was served.
        assert now_ms <= 2 * bound_ms + 1_000
