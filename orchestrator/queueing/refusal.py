"""The refusals of the queue, each with the predicted figure and when to come again."""

from __future__ import annotations

from orchestrator.queueing.entry import Entry
from shoal.errors import Foreseen, Reason, ShoalError

# Bounds of Retry-After: sooner only costs, and nobody knows a fleet's load in a minute.
MIN_RETRY_AFTER_MS = 250
MAX_RETRY_AFTER_MS = 60_000


def too_late(entry: Entry, ttft_ms: float, excess_ms: float) -> ShoalError:
    """The first token would come too late; `ttft_ms` is predicted, waiting included."""
    return ShoalError(
        Reason.SLO_UNREACHABLE if entry.wants_refusal else Reason.OVERLOADED,
        f"all devices for {entry.lane.model!r} are busy: the first token is predicted after"
        f" {ttft_ms:.0f} ms, too late for the request's objective or deadline; try again in"
        f" {_retry_ms(excess_ms)} ms, or ask for less",
        retry_after_ms=_retry_ms(excess_ms),
        foreseen=Foreseen(ttft_ms),
    )


def too_long(entry: Entry, ttft_ms: float, excess_ms: float) -> ShoalError:
    """More wait than can be served in the time that anybody may wait."""
    return ShoalError(
        Reason.OVERLOADED,
        f"all devices for {entry.lane.model!r} are busy: the first token is predicted after"
        f" {ttft_ms:.0f} ms; try again in {_retry_ms(excess_ms)} ms",
        retry_after_ms=_retry_ms(excess_ms),
        foreseen=Foreseen(ttft_ms),
    )


def waited_too_long(entry: Entry, waited_ms: float, retry_ms: float) -> ShoalError:
    """No device took the request in all the time that it may wait."""
    return ShoalError(
        Reason.OVERLOADED,
        f"no device for {entry.lane.model!r} had room within {waited_ms:.0f} ms; try again in"
        f" {_retry_ms(retry_ms)} ms",
        retry_after_ms=_retry_ms(retry_ms),
    )


def full(num_waiting: int, retry_ms: float) -> ShoalError:
    """No place is left to wait, or another tenant's request needs this one's."""
    return ShoalError(
        Reason.OVERLOADED,
        f"all devices are busy and the queue is full ({num_waiting} requests wait); try again in"
        f" {_retry_ms(retry_ms)} ms",
        retry_after_ms=_retry_ms(retry_ms),
    )


def _retry_ms(wanted_ms: float) -> int:
    return int(min(MAX_RETRY_AFTER_MS, max(MIN_RETRY_AFTER_MS, wanted_ms)))
