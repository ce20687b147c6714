"""The energy meters below a root folder, so that recorded trees are tests.

Sources: Linux documentation power/powercap/powercap.rst (RAPL), hwmon/sysfs-interface.rst
(power*_input in microwatts, in*_input in millivolts, curr*_input in milliamperes),
hwmon/acpi_power_meter.rst, ABI/testing/sysfs-class-power (batteries); NVIDIA's Jetson Linux
Developer Guide (INA3221 channels).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from agent.hardware.energy import CounterSource, FallingCharge, Meters, PowerSource, Source
from agent.hardware.files import list_dir, read_int, read_text
from agent.hardware.nvml import find_gpu_meters

# RAPL counters move every millisecond; twenty of them make a share of some percent.
_RAPL_RESOLUTION_S = 0.02
# Board sensors average over some 100 ms and are sampled every half second.
_SENSOR_RESOLUTION_S = 0.5
# Fuel gauges renew their figures every few seconds.
_BATTERY_RESOLUTION_S = 1.0
# A board's bus takes a millisecond an answer, and requests may come many at once.
_ASK_EVERY_S = 0.05
# Channels that carry a whole board: Jetson Orin, older Jetsons.
_BOARD_CHANNELS = ("VDD_IN", "POM_5V_IN")
# AGX Orin has no channel for its input; these three carry the module together.
_AGX_ORIN_RAILS = ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")
# hwmon chips whose power is that of one part which we do not compute on.
_PARTS = ("amdgpu", "nouveau", "xe", "i915", "nvme", "iwlwifi", "drivetemp", "mlx5")


def find_meters(root: Path, *, gpus: bool = False) -> tuple[Meters, list[str]]:
    """What measures this device, widest first, and notes on meters that cannot be read.

    Board input, ACPI power meter, discharging battery, CPU packages (with the NVIDIA GPUs
    when `gpus` compute), other hwmon chips. Each group is used while a wider one is silent.
    """
    packages, notes = _rapl_packages(root)
    groups: list[list[Source]] = [[source] for source in _boards(root)]
    groups += [[source] for source in _hwmon(root, acpi=True)]
    groups.append(_batteries(root))
    groups.append([*packages, *(find_gpu_meters() if gpus else ())])
    if not packages:
        groups += [[source] for source in _hwmon(root, acpi=False)]
    return Meters(groups), notes


def _rapl_packages(root: Path) -> tuple[list[Source], list[str]]:
    """Package counters; core, uncore and dram zones are parts of them or overlap."""
    meters: list[Source] = []
    notes: list[str] = []
    for zone in list_dir(root / "sys/class/powercap"):
        name = read_text(zone / "name") or ""
        # The MMIO zone of the same package counts the same energy again.
        if not name.startswith("package") or zone.name.startswith("intel-rapl-mmio"):
            continue
        if read_int(zone / "energy_uj") is None:
            notes.append(
                f"rapl:{name} exists and cannot be read by this user (docs/energy.md): "
                "joules are estimated"
            )
            continue
        meters.append(
            CounterSource(
                f"rapl:{name}",
                partial(read_int, zone / "energy_uj"),
                read_int(zone / "max_energy_range_uj") or 2**32,
                _RAPL_RESOLUTION_S,
            )
        )
    return meters, notes


def read_package_limit_w(root: Path) -> float | None:
    """The CPU packages' long-term power limit, W: what they draw under lasting load at most.

    Readable where the counters are not; None when RAPL does not tell it.
    """
    total_uw = 0
    for zone in list_dir(root / "sys/class/powercap"):
        named = (read_text(zone / "name") or "").startswith("package")
        if not named or zone.name.startswith("intel-rapl-mmio"):
            continue
        for number in (0, 1, 2):
            if read_text(zone / f"constraint_{number}_name") == "long_term":
                total_uw += read_int(zone / f"constraint_{number}_power_limit_uw") or 0
    # Some firmware sets no limit and says some 4 kW.
    return total_uw / 1e6 if 0 < total_uw < 2e9 else None


class _Spared:
    """A sensor that is asked at most every `_ASK_EVERY_S`; in between its last answer holds."""

    def __init__(self, read_w: Callable[[float], float | None]) -> None:
        self._read_w = read_w
        self._asked_s: float | None = None
        self._watts: float | None = None

    def __call__(self, now_s: float) -> float | None:
        if self._asked_s is None or now_s - self._asked_s >= _ASK_EVERY_S:
            self._asked_s, self._watts = now_s, self._read_w(now_s)
        return self._watts


def _boards(root: Path) -> list[PowerSource]:
    found = _old_jetsons(root)
    for chip in list_dir(root / "sys/class/hwmon"):
        if read_text(chip / "name") != "ina3221":
            continue
        files = {
            read_text(chip / f"in{channel}_label"): (
                chip / f"in{channel}_input",
                chip / f"curr{channel}_input",
            )
            for channel in (1, 2, 3)
        }
        rails: list[tuple[str, ...]] = [(label,) for label in _BOARD_CHANNELS if label in files]
        if all(label in files for label in _AGX_ORIN_RAILS):
            rails.append(_AGX_ORIN_RAILS)
        for labels in rails:
            read_w = _Spared(partial(_rails_w, [files[label] for label in labels]))
            found.append(PowerSource(f"ina3221:{'+'.join(labels)}", read_w, _SENSOR_RESOLUTION_S))
    return found


def _old_jetsons(root: Path) -> list[PowerSource]:
    """Jetson Linux before 34: its own driver shows milliwatts as IIO channels."""
    return [
        PowerSource(
            f"ina3221x:{label}",
            _Spared(partial(_milliwatt_file_w, device / f"in_power{channel}_input")),
            _SENSOR_RESOLUTION_S,
        )
        for chip in list_dir(root / "sys/bus/i2c/drivers/ina3221x")
        for device in list_dir(chip)
        if device.name.startswith("iio:device")
        for channel in (0, 1, 2)
        if (label := read_text(device / f"rail_name_{channel}")) in _BOARD_CHANNELS
    ]


def _milliwatt_file_w(file: Path, _now_s: float) -> float | None:
    milliwatts = read_int(file)
    return None if milliwatts is None else milliwatts / 1e3


def _rails_w(rails: list[tuple[Path, Path]], now_s: float) -> float | None:
    """The rails' power together; None when one of them does not tell."""
    parts = [_volt_ampere_w(volts, amperes, now_s) for volts, amperes in rails]
    return None if None in parts else sum(part for part in parts if part is not None)


def _volt_ampere_w(volt_file: Path, ampere_file: Path, _now_s: float) -> float | None:
    millivolts, milliamperes = read_int(volt_file), read_int(ampere_file)
    if millivolts is None or milliamperes is None:
        return None
    return millivolts * milliamperes / 1e6


def _hwmon(root: Path, *, acpi: bool) -> list[PowerSource]:
    """ACPI's meter of the whole machine, or the first power channel of any other chip."""
    found: list[PowerSource] = []
    # The kernel shows batteries and chargers as chips of their name, too.
    supplies = {supply.name for supply in list_dir(root / "sys/class/power_supply")}
    for chip in list_dir(root / "sys/class/hwmon"):
        name = read_text(chip / "name") or ""
        if name in supplies:
            continue
        if (name == "power_meter") is not acpi or name == "ina3221" or name.startswith(_PARTS):
            continue
        for kind in ("power1_input", "power1_average"):
            if read_int(chip / kind) is not None:
                read_w = _Spared(partial(_microwatt_file_w, chip / kind))
                found.append(PowerSource(f"hwmon:{name}", read_w, _SENSOR_RESOLUTION_S))
                break
    return found


def _microwatt_file_w(file: Path, _now_s: float) -> float | None:
    microwatts = read_int(file)
    return None if microwatts is None else microwatts / 1e6


def _batteries(root: Path) -> list[Source]:
    """Batteries that feed the device, as one meter of it: two may take turns."""
    supplies = [
        supply
        for supply in list_dir(root / "sys/class/power_supply")
        if read_text(supply / "type") == "Battery" and read_text(supply / "scope") != "Device"
    ]
    if not supplies:
        return []
    batteries = [_Battery(supply) for supply in supplies]

    def read_w(now_s: float) -> float | None:
        delivered = [watts for each in batteries if (watts := each(now_s)) is not None]
        return sum(delivered) if delivered else None

    name = "+".join(supply.name for supply in supplies)
    return [PowerSource(f"battery:{name}", _Spared(read_w), _BATTERY_RESOLUTION_S)]


class _Battery:
    """What a discharging battery delivers: power_now, else current and voltage, else energy_now."""

    def __init__(self, supply: Path) -> None:
        self._supply = supply
        self._falling = FallingCharge(partial(read_int, supply / "energy_now"))

    def __call__(self, now_s: float) -> float | None:
        supply = self._supply
        if read_text(supply / "status") != "Discharging":
            return None
        power_uw = read_int(supply / "power_now")
        if power_uw is not None:
            return abs(power_uw) / 1e6
        current_ua = read_int(supply / "current_now")
        voltage_uv = read_int(supply / "voltage_now")
        if current_ua is not None and voltage_uv is not None:
            return abs(current_ua) * voltage_uv / 1e12
        return self._falling(now_s)
