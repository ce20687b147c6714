"""GPUs and NPUs that the device has, whether or not anything can use them."""

from __future__ import annotations

from pathlib import Path

from agent.hardware.accelerator import Accelerator
from agent.hardware.gpus import find_gpus
from agent.hardware.npus import find_npus


def detect_accelerators(root: Path, memory_bytes: int) -> tuple[list[Accelerator], list[str]]:
    """What `root` shows, and notes on what was seen and not understood."""
    gpus, gpu_notes = find_gpus(root, memory_bytes)
    npus, npu_notes = find_npus(root)
    return gpus + npus, gpu_notes + npu_notes
