"""The capability report: what this device is, as detected and measured."""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.hardware.accelerator import Accelerator
from agent.hardware.accelerators import detect_accelerators
from agent.hardware.cpu import detect_cpu
from agent.hardware.files import read_text
from agent.hardware.gpus import vulkan_drivers
from agent.hardware.memory import read_memory
from agent.hardware.meters import find_meters
from agent.hardware.power import (
    CLASS_TDP_W,
    batteries,
    estimate_power,
    power_source,
    thermal_zones,
)

_UNFILLED = (
    *("To Be Filled By O.E.M.", "To be filled by O.E.M.", "Default string", "None"),
    *("System manufacturer", "System Product Name", "Not Specified"),
)
DEVICE_CLASSES = tuple(CLASS_TDP_W)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capability report; None means not known, never 0."""

    hostname: str
    device_class: str
    detected_class: str
    os: str
    architecture: str
    cpu_model: str
    cores: int
    cpu_features: tuple[str, ...]
    memory_bytes: int
    power_source: str
    power_meters: tuple[str, ...]
    tdp_w: float | None
    accelerators: tuple[Accelerator, ...]
    memory_bandwidth_gb_s: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def emulated(self) -> bool:
        """True when the declared class differs from the hardware's."""
        return self.device_class != self.detected_class


def detect(
    root: Path = Path("/"),
    *,
    declared_class: str = "",
    declared_tdp_w: float | None = None,
    architecture: str = "",
    served_by: Mapping[str, str] | None = None,
) -> Capabilities:
    """Read the device under `root`; `declared_class` overrides the class, not the hardware.

    `declared_tdp_w`: what the owner says that the device draws under load.

    An accelerator makes the device's class only when something serves it; `served_by` tells
    what does, by the accelerator's kind.
    """
    cpu = detect_cpu(root, architecture)
    memory = read_memory(root)
    accelerators, notes = detect_accelerators(root, memory.total_bytes)
    accelerators = [
        a if a.served_by else replace(a, served_by=(served_by or {}).get(a.kind, ""))
        for a in accelerators
    ]
    served = [a.kind for a in accelerators if a.served_by]
    detected_class = served[0] if served else cpu.device_class
    meters, meter_notes = find_meters(root, gpus=detected_class == "gpu")
    notes += meter_notes
    if not detected_class:
        notes.append(f"architecture {cpu.architecture} is of no known class")
    notes += [
        f"{a.kind} {a.vendor} {a.model}: detected, no engine serves it"
        for a in accelerators
        if not a.served_by
    ]
    device_class = declared_class or detected_class
    power = estimate_power(
        root, device_class, emulated=device_class != detected_class, declared_w=declared_tdp_w
    )
    labels = _labels(root)
    if power is not None:
        labels["tdp"] = "declared" if declared_tdp_w is not None else "estimated"
        notes.append(f"tdp_w is {power.source}, {labels['tdp']}")
    return Capabilities(
        hostname=socket.gethostname(),
        device_class=device_class,
        detected_class=detected_class,
        os=_os_name(root),
        architecture=cpu.architecture,
        cpu_model=cpu.model,
        cores=cpu.cores,
        cpu_features=cpu.features,
        memory_bytes=memory.total_bytes,
        power_source=power_source(root),
        power_meters=meters.names,
        tdp_w=None if power is None else power.watts,
        accelerators=tuple(accelerators),
        labels=labels,
        notes=tuple(notes),
    )


def _labels(root: Path) -> dict[str, str]:
    """What is worth knowing of the device beside its figures; what is not told is left out."""
    named = {
        "board": _board(root),
        "vulkan": ", ".join(vulkan_drivers(root)),
        "thermal_zones": ", ".join(thermal_zones(root)),
        "batteries": ", ".join(batteries(root)),
    }
    return {name: value for name, value in named.items() if value}


def _board(root: Path) -> str:
    """By the device tree, else by DMI, whose fields vendors leave as they found them."""
    if board := read_text(root / "proc/device-tree/model"):
        return board
    dmi = root / "sys/class/dmi/id"
    parts = (read_text(dmi / name) or "" for name in ("sys_vendor", "product_name"))
    return " ".join(part for part in parts if part and part not in _UNFILLED)


def _os_name(root: Path) -> str:
    for line in (read_text(root / "etc/os-release") or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return platform.system()
