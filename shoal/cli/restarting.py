"""When a part of the fleet that ended is started again, and how soon. Pure."""

from __future__ import annotations

FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0
# A child that lived this long starts its pauses anew.
STEADY_S = 60.0
# An agent's exit codes (docs/exit-codes.md) after which coming back may help: a fault of its
# own, and a fleet that it did not reach. 0 is an agent that was drained or told to leave.
_PASSING_AGENT_STATUSES = frozenset({1, 10})


def comes_back(part: str, exit_status: int) -> bool:
    """Whether to start the part again; `exit_status` below 0: ended by that signal."""
    return part != "agent" or exit_status < 0 or exit_status in _PASSING_AGENT_STATUSES


def next_pause_s(last_pause_s: float, lived_s: float) -> float:
    """The pause before the next start of a child that lived for `lived_s`."""
    return FIRST_PAUSE_S if lived_s > STEADY_S else min(last_pause_s * 2, MAX_PAUSE_S)
