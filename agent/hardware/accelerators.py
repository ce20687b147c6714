"""GPUs and NPUs that the device has, whether or not an engine can use them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agent.hardware.files import list_dir, read_fields, read_text


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A detected GPU or NPU; `served_by` is "" while no engine of ours uses it."""

    kind: str
    vendor: str
    model: str
    memory_bytes: int = 0
    unified_memory: bool = False
    served_by: str = ""


# Driver names of the kernel's accel subsystem (Documentation/accel).
_ACCEL_DRIVERS = {
    "intel_vpu": ("intel", "NPU"),
    "amdxdna": ("amd", "XDNA NPU"),
    "habanalabs": ("intel", "Gaudi"),
    "qaic": ("qualcomm", "Cloud AI 100"),
    "rocket": ("rockchip", "NPU"),
}


def detect_accelerators(root: Path, memory_bytes: int) -> tuple[list[Accelerator], list[str]]:
    """What `root` shows, and notes on device nodes that were seen and not understood."""
    found: list[Accelerator] = []
    notes: list[str] = []
    board = read_text(root / "proc/device-tree/model") or ""
    compatible = read_text(root / "proc/device-tree/compatible") or ""
    # Older Jetson boards say "jetson" or only the SoC, "nvidia,tegra...".
    if "Jetson" in board or "nvidia,tegra" in compatible:
        found.append(Accelerator("gpu", "nvidia", board, memory_bytes, unified_memory=True))
    else:
        found += _nvidia_cards(root)
    found += _npus(root, board)
    for node in list_dir(root / "sys/class/accel"):
        driver = node / "device/driver"
        name = driver.resolve().name if driver.exists() else ""
        if name in _ACCEL_DRIVERS:
            vendor, model = _ACCEL_DRIVERS[name]
            found.append(Accelerator("npu", vendor, model))
        else:
            notes.append(f"accelerator {node.name} with driver {name or 'unknown'}: not known")
    return found, notes


def _nvidia_cards(root: Path) -> list[Accelerator]:
    """Discrete cards; the driver's /proc files do not tell their memory."""
    return [
        Accelerator("gpu", "nvidia", fields.get("Model", ""))
        for card in list_dir(root / "proc/driver/nvidia/gpus")
        if (fields := read_fields(card / "information"))
    ]


def _npus(root: Path, board: str) -> list[Accelerator]:
    found: list[Accelerator] = []
    # Rockchip's vendor kernel (rknpu) shows a debugfs folder or a platform driver.
    rknpu = (root / "sys/kernel/debug/rknpu", root / "sys/bus/platform/drivers/RKNPU")
    if any(path.exists() for path in rknpu):
        found.append(Accelerator("npu", "rockchip", f"RKNPU ({board})" if board else "RKNPU"))
    found += [
        Accelerator("npu", "hailo", "Hailo")
        for node in list_dir(root / "dev")
        if node.name.startswith("hailo") and node.name.removeprefix("hailo").isdecimal()
    ]
    found += [
        Accelerator("npu", "google", "Edge TPU")
        for node in list_dir(root / "dev")
        if node.name.startswith("apex_")
    ]
    return found
