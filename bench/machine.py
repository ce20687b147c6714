"""The machine a figure was measured on."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path


def machine() -> dict[str, object]:
    """CPU model, cores, memory and the versions that decide speed."""
    cpu = "unknown"
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    pages, page_size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": cpu,
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(pages * page_size / 2**30, 1),
        "python": platform.python_version(),
        "llama_cpp_python": metadata.version("llama-cpp-python"),
        "ray": metadata.version("ray"),
    }
