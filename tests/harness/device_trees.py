"""/proc, /sys and /dev of devices that are not here, as far as detection reads them.

Written down from public documentation, named beside each; not complete trees.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# The kernel's arm64 /proc/cpuinfo format (arch/arm64/kernel/cpuinfo.c).
_A76_FEATURES = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop "
    "asimddp"
)


def _arm_cores(*parts: str, features: str = _A76_FEATURES) -> str:
    return "\n".join(
        f"processor\t: {number}\nBogoMIPS\t: 48.00\nFeatures\t: {features}\n"
        f"CPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: {part}\n"
        for number, part in enumerate(parts)
    )


def _memory(total_kib: int, available_kib: int) -> str:
    return (
        f"MemTotal: {total_kib} kB\nMemAvailable: {available_kib} kB\n"
        "SwapTotal: 0 kB\nSwapFree: 0 kB\n"
    )


# Raspberry Pi documentation, "Raspberry Pi 5" (BCM2712, four Cortex-A76) and
# "vcgencmd get_throttled" (bits of the firmware's throttled state).
RASPBERRY_PI_5 = {
    "proc/cpuinfo": _arm_cores("0xd0b", "0xd0b", "0xd0b", "0xd0b"),
    "proc/meminfo": _memory(8256480, 7500000),
    "proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0",
    "proc/device-tree/compatible": "raspberrypi,5-model-b\0brcm,bcm2712\0",
    "sys/class/thermal/thermal_zone0/temp": "51250",
    "sys/devices/platform/soc/soc:firmware/get_throttled": "50005",
    "etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
}

# NVIDIA Jetson Linux Developer Guide: "Jetson Orin Nano ... Power and Performance"
# (INA3221 channel 1 is VDD_IN, hwmon files), device tree names of p3768/p3767.
JETSON_ORIN_NANO = {
    "proc/cpuinfo": _arm_cores(*["0xd42"] * 6),
    "proc/meminfo": _memory(7802276, 5900000),
    "proc/device-tree/model": "NVIDIA Jetson Orin Nano Developer Kit\0",
    "proc/device-tree/compatible": (
        "nvidia,p3768-0000+p3767-0005\0nvidia,p3767-0005\0nvidia,tegra234\0"
    ),
    "sys/class/hwmon/hwmon1/name": "ina3221",
    "sys/class/hwmon/hwmon1/in1_label": "VDD_IN",
    "sys/class/hwmon/hwmon1/in1_input": "5000",
    "sys/class/hwmon/hwmon1/curr1_input": "1200",
    "sys/class/hwmon/hwmon1/in2_label": "VDD_CPU_GPU_CV",
    "sys/class/hwmon/hwmon1/in2_input": "5000",
    "sys/class/hwmon/hwmon1/curr2_input": "300",
    "sys/class/thermal/thermal_zone0/temp": "47000",
    "sys/class/thermal/thermal_zone1/temp": "-256000",
}

# Radxa documentation, "ROCK 5B" (RK3588: four Cortex-A76, four Cortex-A55, NPU with
# the RKNPU platform driver of Rockchip's kernel).
ROCK_5B = {
    "proc/cpuinfo": _arm_cores(*["0xd05"] * 4, *["0xd0b"] * 4),
    "proc/meminfo": _memory(16200000, 15000000),
    "proc/device-tree/model": "Radxa ROCK 5B\0",
    "proc/device-tree/compatible": "radxa,rock-5b\0rockchip,rk3588\0",
    "sys/bus/platform/drivers/RKNPU/fdab0000.npu/uevent": "DRIVER=RKNPU\n",
}

# Linux kernel documentation: power/powercap/powercap.rst (RAPL zones),
# ABI/testing/sysfs-class-power, admin-guide/cgroup-v2.rst (memory.max).
X86_SERVER = {
    "proc/cpuinfo": "".join(
        f"processor\t: {number}\nmodel name\t: Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz\n"
        "flags\t\t: fpu sse4_2 fma f16c avx avx2 avx512f avx512_vnni\n\n"
        for number in range(4)
    ),
    "proc/meminfo": (
        "MemTotal: 65536000 kB\nMemAvailable: 60000000 kB\n"
        "SwapTotal: 2000000 kB\nSwapFree: 1500000 kB\n"
    ),
    "proc/stat": "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 100 0 100 800 0 0 0 0 0 0\n",
    "proc/vmstat": "nr_free_pages 1\npswpin 10\npswpout 20\n",
    "proc/42/status": "Name:\tengine\nVmRSS:\t  200000 kB\nVmSwap:\t    4096 kB\n",
    "sys/class/powercap/intel-rapl:0/name": "package-0",
    "sys/class/powercap/intel-rapl:0/energy_uj": "262143000000",
    "sys/class/powercap/intel-rapl:0/max_energy_range_uj": "262143328850",
    "sys/class/powercap/intel-rapl:0:0/name": "core",
    "sys/class/powercap/intel-rapl:0:0/energy_uj": "1",
    "sys/class/power_supply/AC/type": "Mains",
    "sys/class/power_supply/AC/online": "1",
    "sys/class/thermal/thermal_zone0/temp": "40000",
    "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": "3",
}

# Same documents: a discharging laptop battery.
BATTERY = {
    "sys/class/power_supply/BAT0/type": "Battery",
    "sys/class/power_supply/BAT0/status": "Discharging",
    "sys/class/power_supply/BAT0/power_now": "12500000",
}

# power/powercap/powercap.rst: the limits of a package, readable where the counter is not.
RAPL_LIMITS = {
    "sys/class/powercap/intel-rapl:0/constraint_0_name": "long_term",
    "sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw": "28000000",
    "sys/class/powercap/intel-rapl:0/constraint_1_name": "short_term",
    "sys/class/powercap/intel-rapl:0/constraint_1_power_limit_uw": "64000000",
    # The same package through its memory-mapped registers.
    "sys/class/powercap/intel-rapl-mmio:0/name": "package-0",
    "sys/class/powercap/intel-rapl-mmio:0/energy_uj": "77",
    "sys/class/powercap/intel-rapl-mmio:0/constraint_0_name": "long_term",
    "sys/class/powercap/intel-rapl-mmio:0/constraint_0_power_limit_uw": "28000000",
}

# hwmon/acpi_power_meter.rst: a server's own meter.
ACPI_METER = {
    "sys/class/hwmon/hwmon0/name": "power_meter",
    "sys/class/hwmon/hwmon0/power1_average": "180000000",
}

# hwmon/ina2xx.rst: a power monitor on a board, beside chips that measure parts.
BOARD_WITH_INA226 = {
    "sys/class/hwmon/hwmon0/name": "nvme",
    "sys/class/hwmon/hwmon0/power1_input": "3000000",
    "sys/class/hwmon/hwmon1/name": "BAT0",
    "sys/class/hwmon/hwmon1/power1_input": "9000000",
    "sys/class/hwmon/hwmon2/name": "ina226",
    "sys/class/hwmon/hwmon2/power1_input": "7250000",
    "sys/class/power_supply/BAT0/type": "Battery",
    "sys/class/power_supply/BAT0/status": "Charging",
    "sys/class/power_supply/BAT0/power_now": "9000000",
}

# NVIDIA Linux driver README, chapter "Using the /proc File System Interface".
NVIDIA_CARD = {
    "proc/driver/nvidia/gpus/0000:01:00.0/information": (
        "Model: \t\t NVIDIA GeForce RTX 3060\nIRQ:   \t\t 142\n"
    ),
}


def plant(root: Path, *trees: Mapping[str, str]) -> Path:
    """Write the trees' files under `root`; later ones win."""
    for tree in trees:
        for name, text in tree.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return root
