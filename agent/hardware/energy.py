"""Joules over an interval, from counters that wrap and from sensors that only tell watts.

Pure: sources are given functions that read, and the time. `agent.hardware.meters` finds
them on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Reading:
    """Joules since the source's first reading.

    Readings of different `generation` have a gap between them and cannot be compared.
    """

    joules: float
    generation: int


class Source(Protocol):
    """One meter; reading it advances its state."""

    @property
    def name(self) -> str:
        """As reported in `power_meters`."""
        ...

    @property
    def resolution_s(self) -> float:
        """A shorter interval says nothing about power."""
        ...

    @property
    def needs_sampling(self) -> bool:
        """True when it only knows watts and must be read often."""
        ...

    def read(self, now_s: float) -> Reading | None:
        """The reading now; None while the sensor does not answer."""
        ...


class CounterSource:
    """A cumulative counter of microjoules that goes on at 0 after `max_uj`."""

    needs_sampling = False

    def __init__(
        self, name: str, read_uj: Callable[[], int | None], max_uj: int, resolution_s: float
    ) -> None:
        """`max_uj` 0: the counter does not wrap, a smaller value means that it was reset."""
        self.name = name
        self.resolution_s = resolution_s
        self._read_uj = read_uj
        self._max_uj = max_uj
        self._last_uj: int | None = None
        self._total_uj = 0
        self._generation = 0

    def read(self, now_s: float) -> Reading | None:
        """Right when called at least once a wrap: a package at 100 W takes 40 minutes."""
        value, last = self._read_uj(), self._last_uj
        if value is None:
            if last is not None:
                self._generation += 1
            self._last_uj = None
            return None
        if last is not None:
            delta = value - last
            if delta < 0 and self._max_uj:
                delta += self._max_uj
            if delta < 0:
                self._generation += 1
            else:
                self._total_uj += delta
        self._last_uj = value
        return Reading(self._total_uj / 1e6, self._generation)


class PowerSource:
    """A sensor that tells watts; joules are the trapezoids between its readings."""

    needs_sampling = True

    def __init__(
        self, name: str, read_w: Callable[[float], float | None], resolution_s: float
    ) -> None:
        """`read_w` gets the time, which sensors that derive watts themselves need."""
        self.name = name
        self.resolution_s = resolution_s
        self._read_w = read_w
        self._last: tuple[float, float] | None = None
        self._joules = 0.0
        self._generation = 0

    def read(self, now_s: float) -> Reading | None:
        """Adds what was drawn since the last reading."""
        watts, last = self._read_w(now_s), self._last
        if watts is None:
            if last is not None:
                self._generation += 1
            self._last = None
            return None
        if last is not None:
            self._joules += (now_s - last[0]) * (last[1] + watts) / 2
        self._last = (now_s, watts)
        return Reading(self._joules, self._generation)


class FallingCharge:
    """Watts from a battery that tells only the energy left, in microwatt-hours.

    Its steps are coarse (10 mWh is 36 J): the power between the last two steps holds
    until the next one. For use as a PowerSource's `read_w`.
    """

    def __init__(self, read_uwh: Callable[[], int | None]) -> None:
        self._read_uwh = read_uwh
        self._step: tuple[float, int] | None = None
        self._watts: float | None = None

    def __call__(self, now_s: float) -> float | None:
        """None until the charge has fallen once, and again when it rises or is not told."""
        value, step = self._read_uwh(), self._step
        if value is None or step is None or value > step[1]:
            self._step = None if value is None else (now_s, value)
            self._watts = None
        elif value < step[1] and now_s > step[0]:
            self._watts = (step[1] - value) * 3600e-6 / (now_s - step[0])
            self._step = (now_s, value)
        return self._watts


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All sources at one moment, in the order of `Meters`."""

    at_s: float
    readings: tuple[Reading | None, ...]


@dataclass(frozen=True, slots=True)
class Interval:
    """What was drawn between two snapshots."""

    joules: float
    seconds: float


class Meters:
    """A device's meters in groups, widest first; those of one group are added up."""

    def __init__(self, groups: Sequence[Sequence[Source]] = ()) -> None:
        self._groups = [tuple(group) for group in groups if group]
        self._sources = [source for group in self._groups for source in group]

    @property
    def names(self) -> tuple[str, ...]:
        """All meters, the widest first."""
        return tuple(source.name for source in self._sources)

    @property
    def need_sampling(self) -> bool:
        """True when some meter must be read every half second while there is work."""
        return any(source.needs_sampling for source in self._sources)

    def read(self, now_s: float) -> Snapshot:
        """Read every source: a few small files."""
        return Snapshot(now_s, tuple(source.read(now_s) for source in self._sources))

    def between(self, before: Snapshot, after: Snapshot) -> Interval | None:
        """By the widest group that was read without a gap; None: no meter, or too short."""
        seconds = after.at_s - before.at_s
        index = 0
        for group in self._groups:
            pairs = [
                (before.readings[i], after.readings[i]) for i in range(index, index + len(group))
            ]
            index += len(group)
            if seconds < max(source.resolution_s for source in group):
                continue
            joules = _difference(pairs)
            # A sensor that reads 0 sleeps or is not wired: no device draws nothing.
            if joules is not None and joules > 0:
                return Interval(joules, seconds)
        return None


def _difference(pairs: Sequence[tuple[Reading | None, Reading | None]]) -> float | None:
    joules = 0.0
    for before, after in pairs:
        if before is None or after is None or before.generation != after.generation:
            return None
        joules += after.joules - before.joules
    return joules
