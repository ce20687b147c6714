"""Joules of single requests: a device's energy shared by what each made it compute.

Pure: time and meters are given. What the engine tells of a request (`Work`) and the
meters' interval from its arrival to its end make its charge:

    busy joules = interval's joules - idle watts x (seconds - computing seconds)
    joules      = busy joules x the request's computing seconds / all computing seconds

So the device's base power counts while it computes, as in the article's figures, and
not while it waits. Without a meter: computing seconds x estimated watts under load.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from agent.hardware.energy import Interval, Meters, Snapshot

# Idle periods shorter than this still carry the end of the work before.
_MIN_IDLE_S = 1.0
# The lowest of the last few idle periods: others had something else running in them.
_IDLE_PERIODS = 8


@dataclass(frozen=True, slots=True)
class Work:
    """Computing seconds in the engine of one model: this request's share, and in all."""

    model: str
    own_s: float
    engine_s: float


@dataclass(frozen=True, slots=True)
class Charge:
    """Joules of one request."""

    joules: float
    estimated: bool


@dataclass(slots=True)
class _EngineClock:
    """A running engine's cumulative computing seconds, and how busy it was lately."""

    at_s: float
    compute_s: float
    busy_share: float = 0.0


class EnergyAccount:
    """Charges requests; knows idle power and power under load from what it has seen."""

    def __init__(self, meters: Meters, estimated_w: float | None) -> None:
        """`estimated_w`: what the device draws while it computes, when no meter tells."""
        self._meters = meters
        self._estimated_w = estimated_w
        self._begun: dict[str, Snapshot] = {}
        self._idle_since: Snapshot | None = None
        self._idle_w: deque[float] = deque(maxlen=_IDLE_PERIODS)
        self._busy_w: float | None = None
        self._engines: dict[str, _EngineClock] = {}

    @property
    def num_open(self) -> int:
        """Requests that have begun and not ended."""
        return len(self._begun)

    def sample(self, now_s: float) -> None:
        """Read the meters, for those that must be read often."""
        self._meters.read(now_s)

    def begin(self, request_id: str, now_s: float) -> None:
        """A request arrived."""
        snapshot = self._meters.read(now_s)
        if not self._begun and self._idle_since is not None:
            idle = self._meters.between(self._idle_since, snapshot)
            if idle is not None and idle.seconds >= _MIN_IDLE_S:
                self._idle_w.append(idle.joules / idle.seconds)
        self._begun[request_id] = snapshot

    def forget(self, request_ids: Iterable[str], now_s: float) -> None:
        """Requests ended without a result; unknown ones are ignored."""
        ended = [self._begun.pop(each) for each in tuple(request_ids) if each in self._begun]
        if ended and not self._begun:
            self._idle_since = self._meters.read(now_s)

    def note_engine(self, model: str, compute_s: float, now_s: float) -> None:
        """An engine reported how long it has computed since its start."""
        clock = self._engines.get(model)
        if clock is None or compute_s < clock.compute_s:
            self._engines[model] = _EngineClock(now_s, compute_s)
        elif now_s > clock.at_s:
            share = (compute_s - clock.compute_s) / (now_s - clock.at_s)
            self._engines[model] = _EngineClock(now_s, compute_s, min(1.0, share))

    def charge(self, request_id: str, work: Work, now_s: float) -> Charge | None:
        """A request ended: its joules; None without a meter and without an estimate."""
        before = self._begun.pop(request_id, None)
        after = self._meters.read(now_s)
        if before is not None and not self._begun:
            self._idle_since = after
        seconds = None if before is None else after.at_s - before.at_s
        interval = None if before is None else self._meters.between(before, after)
        if interval is not None and work.own_s > 0:
            busy_w = self._busy_power_w(interval, self._computing_s(work, interval.seconds))
            self._busy_w = busy_w
            return Charge(busy_w * self._alone_s(work, interval.seconds), estimated=False)
        # Too short for the meter: by what the device drew in longer ones, if there were any.
        watts = self._estimated_w if self._busy_w is None else self._busy_w
        return None if watts is None else Charge(watts * self._alone_s(work, seconds), True)

    def _busy_power_w(self, interval: Interval, computing_s: float) -> float:
        """Mean power while the device computed for us."""
        mean_w = interval.joules / interval.seconds
        if computing_s <= 0 or not self._idle_w:
            return mean_w
        idle_w = min(*self._idle_w, mean_w)
        idle_s = max(0.0, interval.seconds - computing_s)
        return (interval.joules - idle_w * idle_s) / computing_s

    def _computing_s(self, work: Work, seconds: float) -> float:
        """How long any engine computed in the interval; two at once count once."""
        return min(seconds, work.engine_s + self._others_s(work.model, seconds))

    def _alone_s(self, work: Work, seconds: float | None) -> float:
        """The request's part of the computing time, when engines computed side by side."""
        total_s = work.engine_s
        if seconds is not None:
            total_s += self._others_s(work.model, seconds)
        if seconds is None or total_s <= seconds:
            return work.own_s
        return work.own_s * seconds / total_s

    def _others_s(self, model: str, seconds: float) -> float:
        return seconds * sum(
            clock.busy_share for name, clock in self._engines.items() if name != model
        )
