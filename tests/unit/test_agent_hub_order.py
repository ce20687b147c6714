"""The order in which devices dial hubs."""

from __future__ import annotations

from collections import Counter

from agent.session.hub_order import dial_order

HUBS = ["h1:1", "h2:1", "h3:1"]


def test_devices_spread_over_hubs_whatever_the_order_they_are_told() -> None:
    first = Counter(dial_order(f"device-{i}", HUBS)[0] for i in range(600))
    assert all(150 < first[hub] < 250 for hub in HUBS)
    assert dial_order("d", HUBS) == dial_order("d", HUBS[::-1])


def test_devices_of_a_lost_hub_spread_over_the_others_and_no_other_moves() -> None:
    left = HUBS[:2]
    moved: Counter[str] = Counter()
    for i in range(600):
        order = dial_order(f"device-{i}", HUBS)
        assert dial_order(f"device-{i}", left) == [hub for hub in order if hub in left]
        if order[0] == HUBS[2]:
            moved[order[1]] += 1
    assert all(60 < moved[hub] < 140 for hub in left)
