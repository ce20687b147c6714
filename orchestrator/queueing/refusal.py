"""The refusals of the queue, each with the predicted figure and when to come again."""

from __future__ import annotations

from orchestrator.queueing.entry import Entry
from shoal.errors import Foreseen, Reason, ShoalError

# Bounds of Retry-After: sooner only costs, and nobody knows a fleet's load in a minute.
MIN_RETRY_AFTER_MS = 250
MAX_RETRY_AFTER_MS = 60_000


def too_late(entry: Entry, ttft_ms: float, excess_ms: float) -> ShoalError:
    """The first token would come too late; `ttft_ms` is predicted, waiting included."""
    return _refusal(
        f"{_busy(entry)}: {_foreseen(ttft_ms)}, too late for the request's objective or deadline",
        excess_ms,
        reason=Reason.SLO_UNREACHABLE if entry.wants_refusal else Reason.OVERLOADED,
        ttft_ms=ttft_ms,
        remedy=", or ask for less",
    )


def too_long(entry: Entry, ttft_ms: float, excess_ms: float) -> ShoalError:
    """More wait than can be served in the time that anybody may wait."""
    return _refusal(f"{_busy(entry)}: {_foreseen(ttft_ms)}", excess_ms, ttft_ms=ttft_ms)


def waited_too_long(entry: Entry, waited_ms: float, retry_ms: float) -> ShoalError:
    """No device took the request in all the time that it may wait."""
    text = f"no device for {entry.lane.model!r} had room within {waited_ms:.0f} ms"
    return _refusal(text, retry_ms)


def full(num_waiting: int, retry_ms: float) -> ShoalError:
    """No place is left to wait, or another tenant's request needs this one's."""
    text = f"all devices are busy and the queue is full ({num_waiting} requests wait)"
    return _refusal(text, retry_ms)


def _busy(entry: Entry) -> str:
    return f"all devices for {entry.lane.model!r} are busy"


def _foreseen(ttft_ms: float) -> str:
    return f"the first token is predicted after {ttft_ms:.0f} ms"


def _refusal(
    what: str,
    wanted_ms: float,
    *,
    reason: Reason = Reason.OVERLOADED,
    ttft_ms: float | None = None,
    remedy: str = "",
) -> ShoalError:
    retry_ms = int(min(MAX_RETRY_AFTER_MS, max(MIN_RETRY_AFTER_MS, wanted_ms)))
    return ShoalError(
        reason,
        f"{what}; try again in {retry_ms} ms{remedy}",
        retry_after_ms=retry_ms,
        foreseen=None if ttft_ms is None else Foreseen(ttft_ms),
    )
