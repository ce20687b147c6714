"""A GPU or NPU that was seen, and how the kernel names what drives it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agent.hardware.files import read_text


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A detected GPU or NPU; `served_by` is "" while nothing of ours uses it.

    `memory_bytes` 0: not told. `unified_memory`: it computes in the device's own memory.
    """

    kind: str
    vendor: str
    model: str
    memory_bytes: int = 0
    unified_memory: bool = False
    served_by: str = ""


@dataclass(frozen=True, slots=True)
class Bound:
    """What a device folder's `uevent` says (Documentation/driver-api/driver-model)."""

    driver: str
    # "8086:7D1D" of a PCI device, "rockchip,rk3588-rknpu" of one from the device tree.
    pci_id: str
    compatible: str
    slot: str


def read_bound(device: Path) -> Bound:
    """The device below a class's folder; empty texts for what is not told."""
    fields = dict(
        line.partition("=")[::2] for line in (read_text(device / "uevent") or "").splitlines()
    )
    driver = fields.get("DRIVER", "")
    if not driver and (device / "driver").exists():
        driver = (device / "driver").resolve().name
    return Bound(
        driver,
        fields.get("PCI_ID", "").lower(),
        fields.get("OF_COMPATIBLE_0", ""),
        fields.get("PCI_SLOT_NAME", ""),
    )
