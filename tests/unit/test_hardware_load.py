from __future__ import annotations

from pathlib import Path

import pytest

from agent.hardware.bandwidth import measure_bandwidth_gb_s
from agent.hardware.load import LoadSampler
from agent.hardware.memory import read_memory
from agent.hardware.meters import find_meters
from tests.harness import device_trees as trees


def test_swapping_needs_moving_pages_and_swap_of_our_own(tmp_path: Path) -> None:
    root = trees.plant(tmp_path, trees.X86_SERVER)
    sampler = LoadSampler(root, now=0.0)
    still = sampler.sample([42], 1.0)
    assert still.swapped_pages == 0
    assert still.process_swap_bytes == 4096 * 1024
    assert "swapping" not in still.conditions
    trees.plant(root, {"proc/vmstat": "pswpin 15\npswpout 27\n"})
    moving = sampler.sample([42], 2.0)
    assert moving.swapped_pages == 12
    assert "swapping" in moving.conditions
    trees.plant(root, {"proc/vmstat": "pswpin 20\npswpout 27\n"})
    assert "swapping" not in sampler.sample([], 3.0).conditions


def test_cpu_percent_is_that_since_the_last_sample(tmp_path: Path) -> None:
    root = trees.plant(tmp_path, trees.X86_SERVER)
    sampler = LoadSampler(root, now=0.0)
    trees.plant(root, {"proc/stat": "cpu  150 0 125 825 0 0 0 0 0 0\n"})
    assert sampler.sample([], 1.0).cpu_percent == pytest.approx(75.0)


def test_power_is_the_mean_since_the_last_sample(tmp_path: Path) -> None:
    root = trees.plant(tmp_path, trees.X86_SERVER)
    sampler = LoadSampler(root, now=0.0, meters=find_meters(root)[0])
    counter = "sys/class/powercap/intel-rapl:0/energy_uj"
    trees.plant(root, {counter: str(20_000_000 - 328_850)})
    assert sampler.sample([], 2.0).power_w == pytest.approx(10.0)


def test_missing_sensors_are_none_not_zero(tmp_path: Path) -> None:
    sampler = LoadSampler(tmp_path, now=0.0, meters=find_meters(tmp_path)[0])
    sample = sampler.sample([1], 1.0)
    assert sample.power_w is None
    assert sample.temperature_c is None
    hot = LoadSampler(trees.plant(tmp_path, trees.JETSON_ORIN_NANO), now=0.0).sample([], 1.0)
    assert hot.temperature_c == 47.0


def test_pi_firmware_tells_under_voltage_and_throttling(tmp_path: Path) -> None:
    root = trees.plant(tmp_path, trees.RASPBERRY_PI_5)
    conditions = LoadSampler(root, now=0.0).sample([], 1.0).conditions
    assert set(conditions) == {"under_voltage", "throttled"}


def test_x86_throttling_is_news_only_when_the_count_grows(tmp_path: Path) -> None:
    root = trees.plant(tmp_path, trees.X86_SERVER)
    sampler = LoadSampler(root, now=0.0)
    assert "throttled" not in sampler.sample([], 1.0).conditions
    count = "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count"
    trees.plant(root, {count: "4"})
    assert "throttled" in sampler.sample([], 2.0).conditions


def test_memory_limit_of_any_cgroup_above_counts(tmp_path: Path) -> None:
    limits = {
        "proc/self/cgroup": "0::/system.slice/shoal.service\n",
        "sys/fs/cgroup/system.slice/memory.max": str(4 * 2**30),
        "sys/fs/cgroup/system.slice/memory.current": str(1 * 2**30),
        "sys/fs/cgroup/system.slice/shoal.service/memory.max": "max",
    }
    memory = read_memory(trees.plant(tmp_path, trees.X86_SERVER, limits))
    assert memory.total_bytes == 4 * 2**30
    assert memory.available_bytes == 3 * 2**30
    assert memory.swap_used_bytes == 500000 * 1024


def test_bandwidth_is_measured_on_this_machine() -> None:
    measured = measure_bandwidth_gb_s(2, 2**31)
    assert measured is not None
    assert 0.1 < measured < 10_000


def test_bandwidth_is_not_measured_without_memory_to_spare() -> None:
    assert measure_bandwidth_gb_s(2, 8 * 2**20) is None
