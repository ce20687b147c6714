"""What the device is doing now, as differences between two samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agent.hardware.cpu import read_cpu_times
from agent.hardware.energy import Meters
from agent.hardware.memory import read_memory, read_process_memory, read_swapped_pages
from agent.hardware.power import pi_conditions, read_temperature_c, read_throttle_count

# Below this share of memory the kernel starts to reclaim what engines have mapped.
_MEMORY_SHORT_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class LoadSample:
    """One heartbeat's figures; None: no sensor."""

    cpu_percent: float
    memory_available_bytes: int
    memory_total_bytes: int
    swap_used_bytes: int
    swapped_pages: int
    process_swap_bytes: int
    process_rss_bytes: int
    power_w: float | None
    temperature_c: float | None
    conditions: tuple[str, ...]


class LoadSampler:
    """Remembers the last counters; sampling reads a dozen small files."""

    def __init__(self, root: Path = Path("/"), *, now: float, meters: Meters | None = None) -> None:
        """`meters`: shared with who charges requests, since reading advances them."""
        self._root = root
        self._meters = Meters() if meters is None else meters
        self._cpu_times = read_cpu_times(root)
        self._swapped = read_swapped_pages(root)
        self._throttled = read_throttle_count(root)
        self._energy = self._meters.read(now)

    def sample(self, pids: Iterable[int], now: float) -> LoadSample:
        """Figures since the last sample; `pids` are the agent's own processes."""
        root = self._root
        memory = read_memory(root)
        processes = read_process_memory(root, pids)
        swapped = self._swapped_since()
        return LoadSample(
            cpu_percent=self._cpu_percent(),
            memory_available_bytes=memory.available_bytes,
            memory_total_bytes=memory.total_bytes,
            swap_used_bytes=memory.swap_used_bytes,
            swapped_pages=swapped,
            process_swap_bytes=processes.swap_bytes,
            process_rss_bytes=processes.rss_bytes,
            power_w=self._power_w(now),
            temperature_c=read_temperature_c(root),
            conditions=tuple(
                self._conditions(
                    swapping=swapped > 0 and processes.swap_bytes > 0,
                    memory_short=memory.available_bytes < memory.total_bytes * _MEMORY_SHORT_SHARE,
                )
            ),
        )

    def _cpu_percent(self) -> float:
        before, self._cpu_times = self._cpu_times, read_cpu_times(self._root)
        if before is None or self._cpu_times is None:
            return 0.0
        total = self._cpu_times[1] - before[1]
        return 100.0 * (self._cpu_times[0] - before[0]) / total if total > 0 else 0.0

    def _swapped_since(self) -> int:
        before, self._swapped = self._swapped, read_swapped_pages(self._root)
        if before is None or self._swapped is None:
            return 0
        return max(0, self._swapped - before)

    def _conditions(self, *, swapping: bool, memory_short: bool) -> list[str]:
        before, self._throttled = self._throttled, read_throttle_count(self._root)
        conditions = pi_conditions(self._root)
        if before is not None and self._throttled is not None and self._throttled > before:
            conditions.append("throttled")
        if swapping:
            conditions.append("swapping")
        if memory_short:
            conditions.append("memory_short")
        return conditions

    def _power_w(self, now: float) -> float | None:
        """Mean since the last sample, by the widest meter there is."""
        before, self._energy = self._energy, self._meters.read(now)
        drawn = self._meters.between(before, self._energy)
        return None if drawn is None else drawn.joules / drawn.seconds
