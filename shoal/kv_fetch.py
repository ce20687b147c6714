"""What a device tells of a request's cached prefix: fetched or computed, and how long it took.

Devices are not trusted with the form of what they say: what is not as expected is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

_MAX_CHARS = 1000
# More than any time, speed or count in a decision; beyond it a device talks nonsense.
_MAX_NUMBER = 1e12
_NUMBERS = ("recompute_ms", "prefill_tokens_per_s")
_MEASURED = ("fetch_ms", "bandwidth_mb_per_s")  # None: not measured yet
_TIERS = ("host", "disk", "redis")


class FetchReason(StrEnum):
    """Why a prefix was fetched from the shared tier, or not."""

    NOT_HELD = "the shared tier holds none of it"
    LINK_UNMEASURED = "bandwidth unmeasured: tried"
    PREFILL_UNMEASURED = "prefill unmeasured: tried"
    FETCH_FASTER = "fetching is faster"
    RECOMPUTE_AS_FAST = "recomputing is as fast"


def parse_decision(text: str) -> dict[str, Any] | None:
    """The fetch decision in `Timings.kv_decision`; None: there was none, or it is not one.

    `fetch`, `reason`, `num_blocks`, `recompute_ms`, `prefill_tokens_per_s`, and `fetch_ms`
    and `bandwidth_mb_per_s`, which are None before they were measured.
    """
    if not text or len(text) > _MAX_CHARS:
        return None
    try:
        told = json.loads(text)
        if not isinstance(told, dict) or not isinstance(told["fetch"], bool):
            return None
        numbers = {name: _number(told[name]) for name in (*_NUMBERS, "num_blocks")}
        measured = {name: None if told[name] is None else _number(told[name]) for name in _MEASURED}
        return {
            "fetch": told["fetch"],
            "reason": FetchReason(told["reason"]).value,
            **numbers,
            "num_blocks": int(numbers["num_blocks"]),
            **measured,
        }
    except (ValueError, KeyError, RecursionError):
        return None


def restore_times(told: Mapping[str, float]) -> dict[str, float]:
    """`Timings.kv_restore_ms` as far as it names known tiers with a time, in ms."""
    times: dict[str, float] = {}
    for tier in _TIERS:
        try:
            if tier in told:
                times[tier] = round(_number(told[tier]), 3)
        except ValueError:
            continue
    return times


def _number(value: object) -> float:
    """A number from 0 to the most that could be meant; ValueError for all else, NaN too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a number")
    if not 0 <= value <= _MAX_NUMBER:
        raise ValueError("not a number that could be meant")
    return float(value)
