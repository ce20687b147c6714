"""Boards and machines that are not here: what detection reads of each, and what is right.

Written from public documentation, named at each; as far as detection reads, and made up
where only the presence of a value counts (a serial, a temperature). Drivers are recorded by
`uevent` files, which say the same as the links that a real /sys has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.harness.device_trees import JETSON_ORIN_NANO, RASPBERRY_PI_5

_A53_A72 = "fp asimd evtstrm crc32 cpuid"
_A57 = "fp asimd evtstrm aes pmull sha1 sha2 crc32"
_A76 = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop "
    "asimddp"
)
_A78AE = _A76 + " uscat ilrcpc flagm paca pacg"
_ORYON = (
    _A76.replace("asimdrdm", "asimdrdm jscvt fcma") + " sha3 sha512 asimdfhm dit uscat ilrcpc "
    "flagm ssbs sb paca pacg dcpodp flagm2 frint i8mm bf16 rng bti ecv afp rpres"
)
_NEOVERSE_V1 = (
    _A76.replace("asimdrdm", "asimdrdm jscvt fcma") + " sha3 sm3 sm4 sha512 sve asimdfhm dit "
    "uscat ilrcpc flagm ssbs paca pacg dcpodp svei8mm svebf16 i8mm bf16 dgh rng"
)
# lscpu of the machines in public bug reports, without what does not bear on kernels.
_METEOR_LAKE = "fpu sse4_2 fma avx f16c avx2 bmi2 sha_ni avx_vnni gfni vaes vpclmulqdq"
_ZEN5 = (
    "fpu sse4_2 fma avx f16c avx2 avx512f avx512dq avx512cd avx512bw avx512vl avx_vnni "
    "avx512_bf16 avx512vbmi avx512_vbmi2 avx512_vnni avx512_bitalg avx512_vpopcntdq"
)
_SAPPHIRE_RAPIDS = _ZEN5 + " amx_bf16 avx512_fp16 amx_tile amx_int8"


@dataclass(frozen=True)
class Board:
    """A tree and what detection must say of it."""

    source: str
    tree: Mapping[str, str]
    architecture: str
    detected_class: str
    cpu_model: str
    cores: int
    features: frozenset[str]
    lacks: frozenset[str] = frozenset()
    # (kind, vendor, part of the model, unified memory)
    accelerators: tuple[tuple[str, str, str, bool], ...] = ()
    meters: tuple[str, ...] = ()
    power_source: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def _arm(*cores: tuple[str, str], features: str) -> str:
    """cpuinfo as arch/arm64/kernel/cpuinfo.c prints it; (implementer, part) of each core."""
    return "\n".join(
        f"processor\t: {number}\nBogoMIPS\t: 48.00\nFeatures\t: {features}\n"
        f"CPU implementer\t: {implementer}\nCPU architecture: 8\nCPU variant\t: 0x1\n"
        f"CPU part\t: {part}\nCPU revision\t: 0\n"
        for number, (implementer, part) in enumerate(cores)
    )


def _x86(model: str, threads: int, flags: str) -> str:
    return "".join(
        f"processor\t: {number}\nmodel name\t: {model}\nflags\t\t: {flags}\n\n"
        for number in range(threads)
    )


def _memory(total_kib: int) -> str:
    return (
        f"MemTotal: {total_kib} kB\nMemAvailable: {total_kib * 9 // 10} kB\n"
        "SwapTotal: 0 kB\nSwapFree: 0 kB\n"
    )


def _device_tree(model: str, *compatible: str) -> dict[str, str]:
    return {
        "proc/device-tree/model": model + "\0",
        "proc/device-tree/compatible": "".join(f"{each}\0" for each in compatible),
    }


def _zones(*kinds: str) -> dict[str, str]:
    return {
        f"sys/class/thermal/thermal_zone{number}/{name}": value
        for number, kind in enumerate(kinds)
        for name, value in (("type", kind), ("temp", "45000"))
    }


_CORTEX = "0x41"

RASPBERRY_PI_4 = Board(
    source="Linux bcm2711-rpi-4-b.dts; Raspberry Pi documentation, 'BCM2711' and 'vcgencmd'",
    architecture="aarch64",
    tree={
        **_device_tree("Raspberry Pi 4 Model B Rev 1.4", "raspberrypi,4-model-b", "brcm,bcm2711"),
        **_zones("cpu-thermal"),
        "proc/cpuinfo": _arm(*[(_CORTEX, "0xd08")] * 4, features=_A53_A72)
        + "\nHardware\t: BCM2835\nRevision\t: d03114\nModel\t\t: Raspberry Pi 4 Model B Rev 1.4\n",
        "proc/meminfo": _memory(7998704),
        "sys/devices/platform/soc/soc:firmware/get_throttled": "0",
        "sys/class/drm/renderD128/device/uevent": "DRIVER=v3d\nOF_COMPATIBLE_0=brcm,2711-v3d\n",
        "usr/share/vulkan/icd.d/broadcom_icd.aarch64.json": "{}",
        "usr/share/vulkan/icd.d/lvp_icd.aarch64.json": "{}",
    },
    detected_class="arm_cpu",
    cpu_model="Cortex-A72",
    cores=4,
    features=frozenset({"asimd"}),
    lacks=frozenset({"asimddp", "i8mm", "sve", "asimdhp"}),
    accelerators=(("gpu", "broadcom", "2711-v3d", True),),
    labels=(
        ("board", "Raspberry Pi 4 Model B Rev 1.4"),
        ("vulkan", "broadcom"),
        ("thermal_zones", "cpu-thermal"),
    ),
)
RASPBERRY_PI_5_HAILO = Board(
    source="Raspberry Pi documentation, 'Raspberry Pi 5' and 'AI kits'; hailo_pci driver",
    architecture="aarch64",
    tree={
        **RASPBERRY_PI_5,
        "dev/hailo0": "",
        "sys/class/hailo_chardev/hailo0/device_id": "1e60:2864",
        "sys/bus/pci/devices/0001:01:00.0/class": "0x120000",
        "sys/bus/pci/devices/0001:01:00.0/uevent": "DRIVER=hailo\nPCI_ID=1E60:2864\n",
        "sys/class/drm/renderD128/device/uevent": "DRIVER=v3d\nOF_COMPATIBLE_0=brcm,2712-v3d\n",
    },
    detected_class="arm_cpu",
    cpu_model="Cortex-A76",
    cores=4,
    features=frozenset({"asimd", "asimddp", "asimdhp"}),
    lacks=frozenset({"i8mm", "sve"}),
    accelerators=(
        ("gpu", "broadcom", "2712-v3d", True),
        ("npu", "hailo", "Hailo 1e60:2864", False),
    ),
    labels=(("board", "Raspberry Pi 5 Model B Rev 1.0"),),
)
JETSON_NANO = Board(
    source="Linux tegra210-p3450-0000.dts; NVIDIA Jetson Linux 32 Developer Guide, 'Power "
    "Management for Jetson Nano' (ina3221x, rail POM_5V_IN)",
    architecture="aarch64",
    tree={
        **_device_tree(
            *("NVIDIA Jetson Nano Developer Kit", "nvidia,p3450-0000", "nvidia,jetson-nano"),
            "nvidia,tegra210",
        ),
        **_zones("AO-therm", "CPU-therm", "GPU-therm", "PLL-therm", "PMIC-Die", "thermal-fan-est"),
        "proc/cpuinfo": _arm(*[(_CORTEX, "0xd07")] * 4, features=_A57),
        "proc/meminfo": _memory(4059328),
        "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0/rail_name_0": "POM_5V_IN",
        "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0/in_power0_input": "2540",
        "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0/rail_name_1": "POM_5V_GPU",
        "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0/in_power1_input": "80",
        "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0/rail_name_2": "POM_5V_CPU",
        "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0/in_power2_input": "600",
    },
    detected_class="arm_cpu",
    cpu_model="Cortex-A57",
    cores=4,
    features=frozenset({"asimd"}),
    lacks=frozenset({"asimddp", "asimdhp"}),
    accelerators=(("gpu", "nvidia", "Jetson Nano", True),),
    meters=("ina3221x:POM_5V_IN",),
)
ORIN_NANO = Board(
    source="Linux tegra234-p3768-0000+p3767-0005.dts; Jetson Linux Developer Guide (INA3221)",
    architecture="aarch64",
    tree=JETSON_ORIN_NANO
    | {"proc/cpuinfo": _arm(*[(_CORTEX, "0xd42")] * 6, features=_A78AE)}
    | {"sys/class/drm/renderD128/device/uevent": "DRIVER=tegra\n"},
    detected_class="arm_cpu",
    cpu_model="Cortex-A78AE",
    cores=6,
    features=frozenset({"asimd", "asimddp", "asimdhp"}),
    lacks=frozenset({"i8mm", "sve"}),
    accelerators=(("gpu", "nvidia", "Jetson Orin Nano", True),),
    meters=("ina3221:VDD_IN",),
)
AGX_ORIN = Board(
    source="Linux tegra234-p3737-0000+p3701-0000.dts; Jetson Linux Developer Guide, 'Jetson AGX "
    "Orin Series' (rails VDD_GPU_SOC, VDD_CPU_CV, VIN_SYS_5V0)",
    architecture="aarch64",
    tree={
        **_device_tree(
            *("NVIDIA Jetson AGX Orin Developer Kit", "nvidia,p3737-0000+p3701-0000"),
            *("nvidia,p3701-0000", "nvidia,tegra234"),
        ),
        **_zones("cpu-thermal", "gpu-thermal", "soc0-thermal", "tj-thermal"),
        "proc/cpuinfo": _arm(*[(_CORTEX, "0xd42")] * 12, features=_A78AE),
        "proc/meminfo": _memory(64350564),
        "sys/class/hwmon/hwmon3/name": "ina3221",
        "sys/class/hwmon/hwmon3/in1_label": "VDD_GPU_SOC",
        "sys/class/hwmon/hwmon3/in1_input": "19904",
        "sys/class/hwmon/hwmon3/curr1_input": "160",
        "sys/class/hwmon/hwmon3/in2_label": "VDD_CPU_CV",
        "sys/class/hwmon/hwmon3/in2_input": "19904",
        "sys/class/hwmon/hwmon3/curr2_input": "40",
        "sys/class/hwmon/hwmon3/in3_label": "VIN_SYS_5V0",
        "sys/class/hwmon/hwmon3/in3_input": "4984",
        "sys/class/hwmon/hwmon3/curr3_input": "608",
        "sys/class/hwmon/hwmon4/name": "ina3221",
        "sys/class/hwmon/hwmon4/in2_label": "VDDQ_VDD2_1V8AO",
        "sys/class/hwmon/hwmon4/in2_input": "4984",
        "sys/class/hwmon/hwmon4/curr2_input": "88",
    },
    detected_class="arm_cpu",
    cpu_model="Cortex-A78AE",
    cores=12,
    features=frozenset({"asimd", "asimddp", "asimdhp"}),
    accelerators=(("gpu", "nvidia", "Jetson AGX Orin", True),),
    meters=("ina3221:VDD_GPU_SOC+VDD_CPU_CV+VIN_SYS_5V0",),
)
ROCK_5B = Board(
    source="Linux rk3588-rock-5b.dts; Radxa documentation, 'RKNPU' (driver version in debugfs)",
    architecture="aarch64",
    tree={
        **_device_tree("Radxa ROCK 5B", "radxa,rock-5b", "rockchip,rk3588"),
        **_zones("soc-thermal", "bigcore0-thermal", "gpu-thermal", "npu-thermal"),
        "proc/cpuinfo": _arm(*[(_CORTEX, "0xd05")] * 4, *[(_CORTEX, "0xd0b")] * 4, features=_A76),
        "proc/meminfo": _memory(16200000),
        "sys/bus/platform/drivers/RKNPU/fdab0000.npu/uevent": "DRIVER=RKNPU\n",
        "sys/kernel/debug/rknpu/version": "RKNPU driver: v0.9.8",
        "sys/class/drm/renderD128/device/uevent": "DRIVER=mali\nOF_COMPATIBLE_0=arm,mali-bifrost\n",
        "sys/class/drm/renderD129/device/uevent": "DRIVER=RKNPU\n",
    },
    detected_class="arm_cpu",
    cpu_model="Cortex-A55 + Cortex-A76",
    cores=8,
    features=frozenset({"asimd", "asimddp"}),
    accelerators=(
        ("gpu", "arm", "mali", True),
        ("npu", "rockchip", "RKNPU rk3588 v0.9.8", False),
    ),
)
ORANGE_PI_5 = Board(
    source="Linux rk3588s-orangepi-5.dts; Documentation/accel/rocket (mainline NPU driver)",
    architecture="aarch64",
    tree={
        **_device_tree("Xunlong Orange Pi 5", "xunlong,orangepi-5", "rockchip,rk3588s"),
        **_zones("package-thermal", "npu-thermal"),
        "proc/cpuinfo": _arm(*[(_CORTEX, "0xd05")] * 4, *[(_CORTEX, "0xd0b")] * 4, features=_A76),
        "proc/meminfo": _memory(8125840),
        "sys/class/accel/accel0/device/uevent": (
            "DRIVER=rocket\nOF_COMPATIBLE_0=rockchip,rk3588-rknn-core\n"
        ),
        "sys/class/drm/renderD128/device/uevent": (
            "DRIVER=panthor\nOF_COMPATIBLE_0=rockchip,rk3588-mali\n"
        ),
        "usr/share/vulkan/icd.d/panfrost_icd.json": "{}",
    },
    detected_class="arm_cpu",
    cpu_model="Cortex-A55 + Cortex-A76",
    cores=8,
    features=frozenset({"asimd", "asimddp"}),
    accelerators=(("gpu", "arm", "rk3588-mali", True), ("npu", "rockchip", "NPU", False)),
    labels=(("vulkan", "panfrost"),),
)
NUC_CORE_ULTRA = Board(
    source="Linux Documentation/accel, drivers/accel/ivpu (PCI 8086:7d1d); "
    "power/powercap/powercap.rst; cpuinfo of a Core Ultra 7 155H",
    architecture="x86_64",
    tree={
        **_zones("x86_pkg_temp", "acpitz"),
        "proc/cpuinfo": _x86("Intel(R) Core(TM) Ultra 7 155H", 22, _METEOR_LAKE),
        "proc/meminfo": _memory(32292000),
        "sys/class/dmi/id/sys_vendor": "ASUSTeK COMPUTER INC.",
        "sys/class/dmi/id/product_name": "NUC14RVH",
        "sys/class/accel/accel0/device/uevent": "DRIVER=intel_vpu\nPCI_ID=8086:7D1D\n",
        "sys/bus/pci/devices/0000:00:0b.0/class": "0x120000",
        "sys/bus/pci/devices/0000:00:0b.0/uevent": "DRIVER=intel_vpu\nPCI_ID=8086:7D1D\n",
        "sys/class/drm/renderD128/device/uevent": (
            "DRIVER=i915\nPCI_ID=8086:7D55\nPCI_SLOT_NAME=0000:00:02.0\n"
        ),
        "usr/share/vulkan/icd.d/intel_icd.x86_64.json": "{}",
        "sys/class/powercap/intel-rapl:0/name": "package-0",
        "sys/class/powercap/intel-rapl:0/energy_uj": "1000",
        "sys/class/powercap/intel-rapl:0/max_energy_range_uj": "262143328850",
        "sys/class/power_supply/ADP1/type": "Mains",
        "sys/class/power_supply/ADP1/online": "1",
    },
    detected_class="x86_cpu",
    cpu_model="Intel(R) Core(TM) Ultra 7 155H",
    cores=22,
    features=frozenset({"avx2", "avx_vnni"}),
    lacks=frozenset({"avx512f", "amx_tile"}),
    accelerators=(("gpu", "intel", "i915", True), ("npu", "intel", "NPU 8086:7d1d", False)),
    meters=("rapl:package-0",),
    power_source="mains",
    labels=(("board", "ASUSTeK COMPUTER INC. NUC14RVH"), ("vulkan", "intel")),
)
RYZEN_AI = Board(
    source="Linux Documentation/accel/amdxdna (PCI 1022:17f0); amdgpu sysfs (mem_info_vram_total);"
    " ABI/testing/sysfs-class-power; uevent of a Strix Point laptop",
    architecture="x86_64",
    tree={
        "proc/cpuinfo": _x86("AMD Ryzen AI 9 HX 370 w/ Radeon 890M", 24, _ZEN5),
        "proc/meminfo": _memory(56000000),
        "sys/class/dmi/id/sys_vendor": "To Be Filled By O.E.M.",
        "sys/class/accel/accel0/device/uevent": (
            "DRIVER=amdxdna\nPCI_CLASS=118000\nPCI_ID=1022:17F0\nPCI_SLOT_NAME=0000:c5:00.1\n"
        ),
        "sys/bus/pci/devices/0000:c5:00.1/class": "0x118000",
        "sys/bus/pci/devices/0000:c5:00.1/uevent": "DRIVER=amdxdna\nPCI_ID=1022:17F0\n",
        "sys/class/drm/renderD128/device/uevent": "DRIVER=amdgpu\nPCI_ID=1002:150E\n",
        "sys/class/drm/renderD128/device/mem_info_vram_total": str(4 * 1024**3),
        "usr/share/vulkan/icd.d/radeon_icd.x86_64.json": "{}",
        "sys/class/power_supply/BAT0/type": "Battery",
        "sys/class/power_supply/BAT0/status": "Discharging",
        "sys/class/power_supply/BAT0/power_now": "11000000",
        "sys/class/power_supply/ACAD/type": "Mains",
        "sys/class/power_supply/ACAD/online": "0",
    },
    detected_class="x86_cpu",
    cpu_model="AMD Ryzen AI 9 HX 370 w/ Radeon 890M",
    cores=24,
    features=frozenset({"avx2", "avx512f", "avx512_vnni", "avx512vbmi", "avx512_bf16"}),
    lacks=frozenset({"amx_tile"}),
    accelerators=(
        ("gpu", "amd", "amdgpu 1002:150e", False),
        ("npu", "amd", "XDNA NPU 1022:17f0", False),
    ),
    meters=("battery:BAT0",),
    power_source="battery",
    labels=(("vulkan", "radeon"), ("batteries", "BAT0")),
)
ASCEND_BOX = Board(
    source="Ascend driver (devdrv_device_driver, PCI 19e5:d100) and container documentation "
    "(/dev/davinci<n>, davinci_manager, devmm_svm, hisi_hdc); cpuinfo of a Kunpeng 920",
    architecture="aarch64",
    tree={
        "proc/cpuinfo": _arm(*[("0x48", "0xd01")] * 8, features=_A76 + " jscvt fcma asimdfhm"),
        "proc/meminfo": _memory(65000000),
        "sys/class/dmi/id/sys_vendor": "Huawei",
        "sys/class/dmi/id/product_name": "Atlas 500 Pro",
        "dev/davinci0": "",
        "dev/davinci1": "",
        "dev/davinci_manager": "",
        "dev/devmm_svm": "",
        "dev/hisi_hdc": "",
        **{
            f"sys/bus/pci/devices/0000:0{slot}:00.0/{name}": value
            for slot in (1, 2)
            for name, value in (
                ("class", "0x120000"),
                ("uevent", "DRIVER=devdrv_device_driver\nPCI_ID=19E5:D100\n"),
            )
        },
    },
    detected_class="arm_cpu",
    cpu_model="TaiShan v110",
    cores=8,
    features=frozenset({"asimd", "asimddp"}),
    accelerators=(("npu", "huawei", "Ascend 310", False),) * 2,
    labels=(("board", "Huawei Atlas 500 Pro"),),
)
SNAPDRAGON_X = Board(
    source="Linux x1e78100-lenovo-thinkpad-t14s.dts, drivers/misc/fastrpc.c, "
    "drivers/power/supply/qcom_battmgr.c",
    architecture="aarch64",
    tree={
        **_device_tree(
            *("Lenovo ThinkPad T14s Gen 6", "lenovo,thinkpad-t14s", "qcom,x1e78100"),
            "qcom,x1e80100",
        ),
        "proc/cpuinfo": _arm(*[("0x51", "0x001")] * 12, features=_ORYON),
        "proc/meminfo": _memory(32300000),
        "dev/fastrpc-cdsp": "",
        "dev/fastrpc-adsp": "",
        "sys/class/remoteproc/remoteproc1/name": "cdsp",
        "sys/class/drm/renderD128/device/uevent": (
            "DRIVER=msm\nOF_COMPATIBLE_0=qcom,adreno-43050c01\n"
        ),
        "usr/share/vulkan/icd.d/freedreno_icd.aarch64.json": "{}",
        "sys/class/power_supply/qcom-battmgr-bat/type": "Battery",
        "sys/class/power_supply/qcom-battmgr-bat/status": "Charging",
        "sys/class/power_supply/qcom-battmgr-ac/type": "Mains",
        "sys/class/power_supply/qcom-battmgr-ac/online": "1",
    },
    detected_class="arm_cpu",
    cpu_model="Oryon",
    cores=12,
    features=frozenset({"asimd", "asimddp", "i8mm", "bf16"}),
    lacks=frozenset({"sve", "sme"}),
    accelerators=(
        ("gpu", "qualcomm", "adreno", True),
        ("npu", "qualcomm", "Hexagon qcom,x1e78100", False),
    ),
    meters=("battery:qcom-battmgr-bat",),
    power_source="mains",
    labels=(("batteries", "qcom-battmgr-bat"), ("vulkan", "freedreno")),
)
XEON_SERVER = Board(
    source="lscpu of a Sapphire Rapids server; hwmon/acpi_power_meter.rst; powercap.rst",
    architecture="x86_64",
    tree={
        "proc/cpuinfo": _x86("Intel(R) Xeon(R) Platinum 8480+", 16, _SAPPHIRE_RAPIDS),
        "proc/meminfo": _memory(527900000),
        "sys/class/dmi/id/sys_vendor": "Dell Inc.",
        "sys/class/dmi/id/product_name": "PowerEdge R760",
        "sys/class/hwmon/hwmon0/name": "power_meter",
        "sys/class/hwmon/hwmon0/power1_average": "180000000",
        "sys/class/powercap/intel-rapl:0/name": "package-0",
        "sys/class/powercap/intel-rapl:0/energy_uj": "1000",
        "sys/class/powercap/intel-rapl:1/name": "package-1",
        "sys/class/powercap/intel-rapl:1/energy_uj": "1000",
        "sys/class/drm/card0/device/uevent": "DRIVER=mgag200\nPCI_ID=102B:0536\n",
    },
    detected_class="x86_cpu",
    cpu_model="Intel(R) Xeon(R) Platinum 8480+",
    cores=16,
    features=frozenset({"avx2", "avx512f", "avx512_vnni", "amx_tile", "amx_int8", "amx_bf16"}),
    meters=("hwmon:power_meter", "rapl:package-0", "rapl:package-1"),
    labels=(("board", "Dell Inc. PowerEdge R760"),),
)
GRAVITON = Board(
    source="Neoverse-V1's features in arch/arm64/kernel/cpuinfo.c; DMI of a cloud machine",
    architecture="aarch64",
    tree={
        "proc/cpuinfo": _arm(*[(_CORTEX, "0xd40")] * 8, features=_NEOVERSE_V1),
        "proc/meminfo": _memory(15900000),
        "sys/class/dmi/id/sys_vendor": "Amazon EC2",
        "sys/class/dmi/id/product_name": "c7g.2xlarge",
    },
    detected_class="arm_cpu",
    cpu_model="Neoverse-V1",
    cores=8,
    features=frozenset({"asimd", "asimddp", "i8mm", "bf16", "sve", "svei8mm"}),
    lacks=frozenset({"sve2"}),
    labels=(("board", "Amazon EC2 c7g.2xlarge"),),
)
# A machine of tomorrow: everything is there and nothing is known.
UNKNOWN = Board(
    source="made up",
    architecture="riscv64",
    tree={
        **_device_tree("Acme Pebble", "acme,pebble", "acme,granite-2"),
        "proc/cpuinfo": "processor\t: 0\nhart\t\t: 1\nisa\t\t: rv64imafdcv\nuarch\t\t: acme,g2\n",
        "proc/meminfo": _memory(4000000),
        "sys/class/accel/accel0/device/uevent": "DRIVER=granite_npu\nPCI_ID=ACED:0001\n",
        "sys/class/drm/renderD128/device/uevent": "DRIVER=granite\nOF_COMPATIBLE_0=acme,gpu\n",
        "sys/bus/pci/devices/0000:01:00.0/class": "0x120000",
        "sys/bus/pci/devices/0000:01:00.0/uevent": "PCI_ID=ACED:0002\n",
    },
    detected_class="",
    cpu_model="",
    cores=1,
    features=frozenset(),
    labels=(("board", "Acme Pebble"),),
    notes=(
        "granite_npu aced:0001: not known",
        "GPU renderD128 with driver granite (acme,gpu): not known",
        "PCI accelerator aced:0002 (0000:01:00.0) with driver none: not used",
        "riscv64",
    ),
)
# The right SoC, and a kernel that drives neither of its accelerators.
ROCK_WITHOUT_DRIVER = Board(
    source="Linux rk3588-rock-5b.dts, kernel without RKNPU and rocket",
    architecture="aarch64",
    tree={
        **_device_tree("Radxa ROCK 5B", "radxa,rock-5b", "rockchip,rk3588"),
        "proc/cpuinfo": _arm(*[(_CORTEX, "0xd0b")] * 4, features=_A76),
        "proc/meminfo": _memory(16200000),
        "sys/bus/platform/drivers/RKNPU/bind": "",
    },
    detected_class="arm_cpu",
    cpu_model="Cortex-A76",
    cores=4,
    features=frozenset({"asimddp"}),
    notes=("rockchip,rk3588 has an NPU, and no driver of it",),
)

BOARDS = {name: value for name, value in tuple(globals().items()) if isinstance(value, Board)}
