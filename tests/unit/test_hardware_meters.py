from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.hardware.energy import CounterSource, Meters, PowerSource
from agent.hardware.meters import find_meters
from agent.hardware.nvml import find_gpu_meters
from agent.hardware.report import detect
from tests.harness import device_trees as trees

RAPL = "sys/class/powercap/intel-rapl:0/energy_uj"


def watts(meters: Meters, seconds: float = 1.0) -> float | None:
    interval = meters.between(meters.read(0.0), meters.read(seconds))
    return None if interval is None else interval.joules / interval.seconds


def test_rapl_counter_is_read_across_its_wrap(tmp_path: Path) -> None:
    meters, _ = find_meters(trees.plant(tmp_path, trees.X86_SERVER))
    before = meters.read(0.0)
    trees.plant(tmp_path, {RAPL: str(20_000_000 - 328_850)})
    interval = meters.between(before, meters.read(2.0))
    assert interval is not None
    assert interval.joules == pytest.approx(20.0)


def test_counter_that_was_reset_makes_a_gap_and_not_a_wrap() -> None:
    values = iter((5_000_000, 6_000_000, 100, 1_000_100))
    meters = Meters([[CounterSource("c", lambda: next(values), 0, 0.1)]])
    snapshots = [meters.read(float(second)) for second in range(4)]
    assert meters.between(snapshots[1], snapshots[2]) is None
    last = meters.between(snapshots[2], snapshots[3])
    assert last is not None
    assert last.joules == pytest.approx(1.0)


def test_package_is_counted_once_though_two_drivers_show_it(tmp_path: Path) -> None:
    meters, _ = find_meters(trees.plant(tmp_path, trees.X86_SERVER, trees.RAPL_LIMITS))
    assert meters.names == ("rapl:package-0",)


def test_interval_shorter_than_a_meter_resolves_is_not_measured(tmp_path: Path) -> None:
    root = trees.plant(tmp_path, trees.JETSON_ORIN_NANO)
    assert watts(find_meters(root)[0], 0.1) is None
    assert watts(find_meters(root)[0], 1.0) == pytest.approx(6.0)


def test_power_sensors_are_integrated_between_their_readings() -> None:
    values = iter((10.0, 20.0, 20.0))
    meters = Meters([[PowerSource("p", lambda _: next(values), 0.5)]])
    before = meters.read(0.0)
    meters.read(2.0)
    interval = meters.between(before, meters.read(3.0))
    assert interval is not None
    assert interval.joules == pytest.approx(2 * 15.0 + 20.0)


def test_sensor_that_was_silent_in_between_measured_nothing() -> None:
    values = iter((10.0, None, 10.0))
    meters = Meters([[PowerSource("p", lambda _: next(values), 0.5)]])
    before = meters.read(0.0)
    assert meters.between(before, meters.read(1.0)) is None
    assert meters.between(before, meters.read(2.0)) is None


def test_sensor_that_reads_zero_is_no_meter() -> None:
    assert watts(Meters([[PowerSource("p", lambda _: 0.0, 0.5)]])) is None


def test_machines_own_meter_is_wider_than_its_packages(tmp_path: Path) -> None:
    meters, _ = find_meters(trees.plant(tmp_path, trees.X86_SERVER, trees.ACPI_METER))
    assert meters.names == ("hwmon:power_meter", "rapl:package-0")
    assert watts(meters) == pytest.approx(180.0)


def test_board_monitor_is_used_and_chips_of_parts_are_not(tmp_path: Path) -> None:
    meters, _ = find_meters(trees.plant(tmp_path, trees.BOARD_WITH_INA226))
    assert meters.names == ("battery:BAT0", "hwmon:ina226")
    assert watts(meters) == pytest.approx(7.25)


def test_board_sensor_is_not_asked_again_within_a_moment(tmp_path: Path) -> None:
    root = trees.plant(tmp_path, trees.JETSON_ORIN_NANO)
    meters, _ = find_meters(root)
    before = meters.read(0.0)
    trees.plant(root, {"sys/class/hwmon/hwmon1/curr1_input": "9999"})
    meters.read(0.02)
    trees.plant(root, trees.JETSON_ORIN_NANO)
    interval = meters.between(before, meters.read(1.0))
    assert interval is not None
    assert interval.joules == pytest.approx(6.0)


def test_discharging_battery_measures_the_device(tmp_path: Path) -> None:
    meters, _ = find_meters(trees.plant(tmp_path, trees.X86_SERVER, trees.BATTERY))
    assert watts(meters) == pytest.approx(12.5)


def test_charging_battery_gives_way_to_the_packages(tmp_path: Path) -> None:
    charging = {"sys/class/power_supply/BAT0/status": "Charging"}
    meters, _ = find_meters(trees.plant(tmp_path, trees.X86_SERVER, trees.BATTERY, charging))
    before = meters.read(0.0)
    trees.plant(tmp_path, {RAPL: "262143328849"})
    interval = meters.between(before, meters.read(0.1))
    assert interval is not None
    assert interval.joules == pytest.approx(0.328849, rel=1e-3)


def test_battery_by_current_and_voltage(tmp_path: Path) -> None:
    battery = "sys/class/power_supply/BAT0"
    tree = {
        f"{battery}/type": "Battery",
        f"{battery}/status": "Discharging",
        f"{battery}/current_now": "-800000",
        f"{battery}/voltage_now": "11400000",
    }
    assert watts(find_meters(trees.plant(tmp_path, tree))[0]) == pytest.approx(9.12)


def test_battery_that_tells_only_what_is_left_needs_two_steps(tmp_path: Path) -> None:
    battery = "sys/class/power_supply/BAT0"
    tree = {f"{battery}/type": "Battery", f"{battery}/status": "Discharging"}
    meters, _ = find_meters(trees.plant(tmp_path, tree, {f"{battery}/energy_now": "50000000"}))
    assert watts(meters) is None
    trees.plant(tmp_path, {f"{battery}/energy_now": "49970000"})
    before = meters.read(10.0)  # 30 mWh in ten seconds
    interval = meters.between(before, meters.read(12.0))
    assert interval is not None
    assert interval.joules == pytest.approx(2 * 10.8)


def test_device_without_sensors_has_no_meters(tmp_path: Path) -> None:
    meters, notes = find_meters(tmp_path)
    assert (meters.names, notes, watts(meters)) == ((), [], None)


def test_unreadable_counter_is_a_note_and_its_limit_is_the_estimate(tmp_path: Path) -> None:
    root = trees.plant(tmp_path, trees.X86_SERVER, trees.RAPL_LIMITS, {RAPL: "no number"})
    found = detect(root, architecture="x86_64")
    assert found.power_meters == ()
    assert any("cannot be read" in note for note in found.notes)
    assert found.tdp_w == pytest.approx(28.0)
    assert found.labels["tdp"] == "estimated"


def test_emulated_device_is_estimated_by_its_class_and_not_by_the_hardware(tmp_path: Path) -> None:
    root = trees.plant(tmp_path, trees.X86_SERVER, trees.RAPL_LIMITS)
    assert detect(root, declared_class="npu", architecture="x86_64").tdp_w == 24.0


def test_owners_figure_comes_first(tmp_path: Path) -> None:
    root = trees.plant(tmp_path, trees.X86_SERVER, trees.RAPL_LIMITS)
    found = detect(root, declared_tdp_w=15.0, architecture="x86_64")
    assert (found.tdp_w, found.labels["tdp"]) == (15.0, "declared")


class NvmlError(Exception):
    """As pynvml's own."""


def install_nvml(monkeypatch: pytest.MonkeyPatch, **calls: object) -> None:
    """Stands in for nvidia-ml-py's module, with one GPU."""
    module = SimpleNamespace(
        NVMLError=NvmlError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        **calls,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)  # type: ignore[arg-type]


def unsupported(_handle: int) -> int:
    raise NvmlError


def test_gpu_is_metered_by_its_energy_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter((0, 1000, 31_000))  # the first is the question whether there is a counter
    install_nvml(
        monkeypatch,
        nvmlDeviceGetTotalEnergyConsumption=lambda _: next(values),
        nvmlDeviceGetPowerUsage=unsupported,
    )
    meters = Meters([find_gpu_meters()])
    assert meters.names == ("nvml:gpu-0",)
    assert watts(meters) == pytest.approx(30.0)


def test_old_gpu_is_metered_by_its_power(monkeypatch: pytest.MonkeyPatch) -> None:
    install_nvml(
        monkeypatch,
        nvmlDeviceGetTotalEnergyConsumption=unsupported,
        nvmlDeviceGetPowerUsage=lambda _: 42_000,
    )
    assert watts(Meters([find_gpu_meters()])) == pytest.approx(42.0)


def test_without_driver_or_library_there_is_no_gpu_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise NvmlError

    install_nvml(monkeypatch)
    monkeypatch.setattr(sys.modules["pynvml"], "nvmlInit", no_driver)
    assert find_gpu_meters() == []
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    assert find_gpu_meters() == []
