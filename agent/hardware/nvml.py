"""Energy and memory of NVIDIA GPUs through the driver's library, when nvidia-ml-py is installed.

Not a dependency: `pip install nvidia-ml-py` on a device whose GPU computes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from agent.hardware.energy import CounterSource, PowerSource, Source

# The energy counter of Volta and newer moves some ten times a second.
_COUNTER_RESOLUTION_S = 0.2
# nvmlDeviceGetPowerUsage averages over a second on Ampere and newer.
_POWER_RESOLUTION_S = 1.0


def find_gpu_meters() -> list[Source]:
    """A source for each GPU that tells energy or power; empty without the library or a GPU."""
    opened = _open()
    if opened is None:
        return []
    nvml, handles = opened
    sources = (_source(nvml, index, handle) for index, handle in enumerate(handles))
    return [source for source in sources if source is not None]


def find_gpu_memories() -> list[int]:
    """Bytes of each GPU's memory, 0 where it is not told; empty without the library."""
    opened = _open()
    if opened is None:
        return []
    nvml, handles = opened

    def total_bytes(handle: Any) -> int:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)

    return [_ask(nvml, total_bytes, handle) or 0 for handle in handles]


def _open() -> tuple[ModuleType, list[Any]] | None:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
        return nvml, [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    except nvml.NVMLError:
        # No driver, or one that the library does not fit: there is no GPU to ask then.
        return None


def _source(nvml: ModuleType, index: int, handle: Any) -> Source | None:
    name = f"nvml:gpu-{index}"
    read_mj = partial(_ask, nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
    if read_mj() is not None:
        return CounterSource(name, partial(_thousand, read_mj), 0, _COUNTER_RESOLUTION_S)
    read_mw = partial(_ask, nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    if read_mw() is not None:
        return PowerSource(name, partial(_milliwatts_w, read_mw), _POWER_RESOLUTION_S)
    return None


def _ask(nvml: ModuleType, call: Callable[[Any], int], handle: Any) -> int | None:
    """The figure; None when this GPU or driver does not tell it."""
    try:
        return call(handle)
    except nvml.NVMLError:
        return None


def _thousand(read_mj: Callable[[], int | None]) -> int | None:
    millijoules = read_mj()
    return None if millijoules is None else millijoules * 1000


def _milliwatts_w(read_mw: Callable[[], int | None], _now_s: float) -> float | None:
    milliwatts = read_mw()
    return None if milliwatts is None else milliwatts / 1000
