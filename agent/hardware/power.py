"""Power source, energy meters, temperature and throttling."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agent.hardware.files import list_dir, read_int, read_text

# Thermal design power by class, W: the representative devices of the article that
# the project is built on (Core i5-12400, Cortex-A78AE, Jetson Orin Nano, RaiderChip).
# An estimate for a device of the class, never a measurement of this one.
CLASS_TDP_W = {"x86_cpu": 75.0, "arm_cpu": 10.0, "gpu": 20.0, "npu": 24.0}

# Raspberry Pi firmware's get_throttled bits for the present moment.
_PI_UNDER_VOLTAGE = 1 << 0
_PI_CAPPED = 1 << 1 | 1 << 2 | 1 << 3


@dataclass(frozen=True, slots=True)
class EnergyMeter:
    """A RAPL counter: microjoules that wrap to 0 after `max_uj`."""

    name: str
    path: Path
    max_uj: int

    def joules_between(self, before_uj: int, after_uj: int) -> float:
        """Energy between two readings less than one wrap apart."""
        delta = after_uj - before_uj
        return (delta if delta >= 0 else delta + self.max_uj) / 1e6


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


def find_meters(root: Path) -> tuple[list[EnergyMeter], list[str]]:
    """Readable package counters, and notes on what is there and cannot be read.

    Packages only: core, uncore and dram zones are parts of them or overlap.
    """
    meters: list[EnergyMeter] = []
    notes: list[str] = []
    for zone in list_dir(root / "sys/class/powercap"):
        name = read_text(zone / "name") or ""
        if not name.startswith("package"):
            continue
        if read_int(zone / "energy_uj") is None:
            notes.append(f"rapl:{name} exists and cannot be read by this user")
            continue
        meters.append(
            EnergyMeter(
                f"rapl:{name}",
                zone / "energy_uj",
                read_int(zone / "max_energy_range_uj") or 2**32,
            )
        )
    return meters, notes


def find_power_sensors(root: Path) -> dict[str, tuple[Path, Path]]:
    """Board power monitors: name -> (millivolt file, milliampere file).

    Jetson boards name the INA3221 channel of the whole board's input VDD_IN.
    """
    found: dict[str, tuple[Path, Path]] = {}
    for chip in list_dir(root / "sys/class/hwmon"):
        if read_text(chip / "name") != "ina3221":
            continue
        for channel in (1, 2, 3):
            label = read_text(chip / f"in{channel}_label")
            if label in ("VDD_IN", "POM_5V_IN"):
                found[f"ina3221:{label}"] = (
                    chip / f"in{channel}_input",
                    chip / f"curr{channel}_input",
                )
    return found


def read_battery_w(root: Path) -> float | None:
    """What a discharging battery delivers, W: the whole device's draw; None otherwise."""
    for supply in list_dir(root / "sys/class/power_supply"):
        if read_text(supply / "type") != "Battery" or read_text(supply / "status") != "Discharging":
            continue
        power_uw = read_int(supply / "power_now")
        if power_uw is not None:
            return abs(power_uw) / 1e6
        current_ua = read_int(supply / "current_now")
        voltage_uv = read_int(supply / "voltage_now")
        if current_ua is not None and voltage_uv is not None:
            return abs(current_ua) * voltage_uv / 1e12
    return None


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
