"""Memory and swap, of the device and of the agent's own processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agent.hardware.files import kib_to_bytes, read_fields, read_int, read_text


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes; a cgroup's limit counts where it is lower than the machine's memory."""

    total_bytes: int
    available_bytes: int
    swap_used_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Bytes held by a group of processes together."""

    rss_bytes: int
    swap_bytes: int


def read_memory(root: Path) -> Memory:
    """Read memory from `root`; a field that the kernel does not tell is 0."""
    info = read_fields(root / "proc/meminfo")

    def field(name: str) -> int:
        return kib_to_bytes(info.get(name)) or 0

    total = field("MemTotal")
    available = field("MemAvailable")
    limit, used = _cgroup(root)
    if limit is not None and limit < total:
        total = limit
        available = min(available, max(0, limit - used))
    return Memory(total, available, max(0, field("SwapTotal") - field("SwapFree")))


def _cgroup(root: Path) -> tuple[int | None, int]:
    """(lowest limit, bytes used under it) on the path from the process's cgroup to the top."""
    lines = (read_text(root / "proc/self/cgroup") or "").splitlines()
    lowest: tuple[int | None, int] = (None, 0)
    for line in lines:
        hierarchy, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if hierarchy == "0":
            top, limit_name, used_name = "sys/fs/cgroup", "memory.max", "memory.current"
        elif controllers == "memory":
            top = "sys/fs/cgroup/memory"
            limit_name, used_name = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            folder = root.joinpath(top, *parts[:depth])
            limit = read_int(folder / limit_name)  # "max" reads as None
            if limit is not None and (lowest[0] is None or limit < lowest[0]):
                lowest = (limit, read_int(folder / used_name) or 0)
    return lowest


def read_swapped_pages(root: Path) -> int | None:
    """Pages swapped in and out by the whole device since boot; None when unknown."""
    pages = None
    for line in (read_text(root / "proc/vmstat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name in ("pswpin", "pswpout"):
            pages = (pages or 0) + int(value)
    return pages


def read_process_memory(root: Path, pids: Iterable[int]) -> ProcessMemory:
    """Sum over `pids`; a process that is gone counts nothing."""
    rss = swap = 0
    for pid in pids:
        status = read_fields(root / f"proc/{pid}/status")
        rss += kib_to_bytes(status.get("VmRSS")) or 0
        swap += kib_to_bytes(status.get("VmSwap")) or 0
    return ProcessMemory(rss, swap)
