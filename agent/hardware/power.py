"""Power source, estimated power, temperature and throttling."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agent.hardware.files import list_dir, read_int, read_text
from agent.hardware.meters import read_package_limit_w

# Power under load by class, W: thermal design power of the representative devices of the
# article that the project is built on (Core i5-12400, Cortex-A78AE, Jetson Orin Nano,
# RaiderChip). Its tokens/J are tokens/s over just these, so a busy device is taken to draw
# all of it. An estimate for a device of the class, never a measurement of this one.
CLASS_TDP_W = {"x86_cpu": 75.0, "arm_cpu": 10.0, "gpu": 20.0, "npu": 24.0}

# Raspberry Pi firmware's get_throttled bits for the present moment.
_PI_UNDER_VOLTAGE = 1 << 0
_PI_CAPPED = 1 << 1 | 1 << 2 | 1 << 3


@dataclass(frozen=True, slots=True)
class EstimatedPower:
    """What a device draws while it computes, W, and where the figure is from."""

    watts: float
    source: str


def estimate_power(
    root: Path, device_class: str, *, emulated: bool, declared_w: float | None
) -> EstimatedPower | None:
    """The owner's figure, else an x86 CPU's own long-term limit, else the class's TDP.

    An emulated device gets its class's: the hardware's would not be that of the class.
    None for a class that is not known. See docs/energy.md for the table.
    """
    if declared_w is not None:
        return EstimatedPower(declared_w, "declared")
    if device_class == "x86_cpu" and not emulated:
        limit_w = read_package_limit_w(root)
        if limit_w is not None:
            return EstimatedPower(limit_w, "the CPU's long-term power limit")
    class_w = CLASS_TDP_W.get(device_class)
    if class_w is None:
        return None
    return EstimatedPower(class_w, f"the reference of class {device_class}")


def power_source(root: Path) -> str:
    """ "mains", "battery", or "" when the device does not tell."""
    online = battery = False
    for supply in list_dir(root / "sys/class/power_supply"):
        kind = read_text(supply / "type")
        if kind in ("Mains", "USB"):
            online |= read_int(supply / "online") == 1
        elif kind == "Battery" and read_text(supply / "scope") != "Device":
            battery = True
            online |= read_text(supply / "status") in ("Charging", "Full", "Not charging")
    if online:
        return "mains"
    return "battery" if battery else ""


def batteries(root: Path) -> tuple[str, ...]:
    """Batteries that feed the device; those of mice and headsets do not."""
    return tuple(
        supply.name
        for supply in list_dir(root / "sys/class/power_supply")
        if read_text(supply / "type") == "Battery" and read_text(supply / "scope") != "Device"
    )


def thermal_zones(root: Path) -> tuple[str, ...]:
    """The kinds of thermal zones, each once, in their order."""
    kinds = (
        read_text(zone / "type")
        for zone in list_dir(root / "sys/class/thermal")
        if zone.name.startswith("thermal_zone")
    )
    return tuple(dict.fromkeys(kind for kind in kinds if kind))


def read_temperature_c(root: Path) -> float | None:
    """The hottest thermal zone, °C; None without a plausible sensor."""
    readings = [
        millidegrees / 1000.0
        for zone in list_dir(root / "sys/class/thermal")
        if zone.name.startswith("thermal_zone")
        and (millidegrees := read_int(zone / "temp")) is not None
    ]
    # A zone that is switched off reads -256 or 0 °C, a broken one 200 °C and more.
    plausible = [value for value in readings if 0.0 < value < 150.0]
    return max(plausible, default=None)


def read_throttle_count(root: Path) -> int | None:
    """How often the x86 package was throttled by heat since boot; None when unknown."""
    cpu0 = root / "sys/devices/system/cpu/cpu0/thermal_throttle"
    return read_int(cpu0 / "package_throttle_count")


def pi_conditions(root: Path) -> list[str]:
    """What a Raspberry Pi's firmware complains of at this moment."""
    text = read_text(root / "sys/devices/platform/soc/soc:firmware/get_throttled")
    try:
        bits = int(text or "0", 16)
    except ValueError:
        return []
    conditions = ["under_voltage"] if bits & _PI_UNDER_VOLTAGE else []
    return [*conditions, "throttled"] if bits & _PI_CAPPED else conditions
