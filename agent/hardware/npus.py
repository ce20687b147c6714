"""NPUs by their device nodes and drivers; a part without its driver is a note, not an NPU.

Sources: the kernel's Documentation/accel (accel nodes: intel_vpu, amdxdna, qaic, habanalabs,
rocket), Rockchip's RKNPU driver (platform driver, debugfs), Hailo's hailo_pci driver
(/dev/hailo<n>, /sys/class/hailo_chardev), Google's gasket driver (/dev/apex_<n>), Huawei's
Ascend driver (/dev/davinci<n>, PCI devices), Qualcomm's FastRPC (drivers/misc/fastrpc.c).
"""

from __future__ import annotations

import re
from pathlib import Path

from agent.hardware.accelerator import Accelerator, read_bound
from agent.hardware.files import list_dir, read_strings, read_text

# Driver names of the kernel's accel subsystem.
_ACCEL_DRIVERS = {
    "intel_vpu": ("intel", "NPU"),
    "amdxdna": ("amd", "XDNA NPU"),
    "habanalabs": ("intel", "Gaudi"),
    "qaic": ("qualcomm", "Cloud AI 100"),
    "rocket": ("rockchip", "NPU"),
    "ethosu": ("arm", "Ethos-U"),
}
# Ascend's own installer names its chips so.
_ASCENDS = {
    "19e5:d100": "Ascend 310",
    "19e5:d500": "Ascend 310P",
    "19e5:d801": "Ascend 910",
    "19e5:d802": "Ascend 910B",
    "19e5:d803": "Ascend 910_93",
}
# PCI class 12: processing accelerators. AMD's NPU says that it is a signal processor (1180).
_PCI_ACCELERATOR = "0x1200"
_AMD_NPUS = ("1022:1502", "1022:17f0")
# SoCs that have an NPU by their maker's data sheet.
_ROCKCHIP_SOCS = ("rk3588", "rk3588s", "rk3576", "rk3568", "rk3566", "rk3562")
_NUMBERED = re.compile(r"(hailo|apex_|davinci)\d+")


def find_npus(root: Path) -> tuple[list[Accelerator], list[str]]:
    """The NPUs below `root`, and notes on what was seen and not understood."""
    socs = read_strings(root / "proc/device-tree/compatible")
    found, notes = _accel_nodes(root)
    found += _rockchip(root, socs)
    nodes = [node.name for node in list_dir(root / "dev")]
    kinds = [match.group(1) for name in nodes if (match := _NUMBERED.fullmatch(name))]
    found += [Accelerator("npu", "hailo", _hailo_model(root))] * kinds.count("hailo")
    found += [Accelerator("npu", "google", "Edge TPU")] * kinds.count("apex_")
    found += _ascends(root, kinds.count("davinci"))
    qualcomm, more = _qualcomm(root, nodes, socs)
    found += qualcomm
    notes += more + _without_driver(root, found, socs)
    return found, notes


def _accel_nodes(root: Path) -> tuple[list[Accelerator], list[str]]:
    found: list[Accelerator] = []
    notes: list[str] = []
    for node in list_dir(root / "sys/class/accel"):
        bound = read_bound(node / "device")
        if bound.driver in _ACCEL_DRIVERS:
            vendor, model = _ACCEL_DRIVERS[bound.driver]
            found.append(Accelerator("npu", vendor, f"{model} {bound.pci_id}".strip()))
        else:
            what = f"driver {bound.driver or 'unknown'} {bound.pci_id}".strip()
            notes.append(f"accelerator {node.name} with {what}: not known")
    return found, notes


def _rockchip(root: Path, socs: list[str]) -> list[Accelerator]:
    """Rockchip's own kernel: a bound device of the platform driver, or its debugfs folder."""
    bound = [
        device
        for device in list_dir(root / "sys/bus/platform/drivers/RKNPU")
        if device.name.endswith(".npu")
    ]
    version = read_text(root / "sys/kernel/debug/rknpu/version") or ""
    if not bound and not version:
        return []
    soc = next((name for name in socs if name.startswith("rockchip,")), "")
    parts = ("RKNPU", soc.removeprefix("rockchip,"), version.removeprefix("RKNPU driver:").strip())
    return [Accelerator("npu", "rockchip", " ".join(part for part in parts if part))]


def _hailo_model(root: Path) -> str:
    for node in list_dir(root / "sys/class/hailo_chardev"):
        return f"Hailo {read_text(node / 'device_id') or ''}".strip()
    return "Hailo"


def _ascends(root: Path, num_nodes: int) -> list[Accelerator]:
    """One for each /dev/davinci<n>; a board's own chip is on no PCI bus."""
    if not num_nodes:
        return []
    on_pci = [_ASCENDS[each] for _, each, _ in _pci_devices(root) if each in _ASCENDS]
    model = on_pci[0] if len(set(on_pci)) == 1 else "Ascend"
    return [Accelerator("npu", "huawei", model)] * num_nodes


def _qualcomm(root: Path, nodes: list[str], socs: list[str]) -> tuple[list[Accelerator], list[str]]:
    """Hexagon: the compute DSP answers FastRPC on a node of its own."""
    soc = next((name for name in socs if name.startswith("qcom,")), "")
    if "fastrpc-cdsp" in nodes or "fastrpc-cdsp-secure" in nodes:
        return [Accelerator("npu", "qualcomm", f"Hexagon {soc}".strip())], []
    dsps = [read_text(each / "name") for each in list_dir(root / "sys/class/remoteproc")]
    if "cdsp" in dsps:
        return [], [f"compute DSP of {soc or 'this SoC'}: no FastRPC node, so nothing can use it"]
    return [], []


def _without_driver(root: Path, found: list[Accelerator], socs: list[str]) -> list[str]:
    """Parts that are there, and that nothing can use as it is."""
    notes = [
        f"PCI accelerator {pci_id} ({slot}) with driver {driver or 'none'}: not used"
        for slot, pci_id, driver in _pci_devices(root)
        if not driver or (pci_id not in _ASCENDS and driver not in _ACCEL_DRIVERS)
        if driver != "hailo"
    ]
    rockchip = {f"rockchip,{soc}" for soc in _ROCKCHIP_SOCS}.intersection(socs)
    if rockchip and not any(each.vendor == "rockchip" for each in found):
        notes.append(f"{min(rockchip)} has an NPU, and no driver of it (RKNPU, rocket) is there")
    return notes


def _pci_devices(root: Path) -> list[tuple[str, str, str]]:
    """(slot, vendor:device, driver) of all processing accelerators."""
    found = []
    for device in list_dir(root / "sys/bus/pci/devices"):
        bound = read_bound(device)
        kind = read_text(device / "class") or ""
        if kind.startswith(_PCI_ACCELERATOR) or bound.pci_id in _AMD_NPUS:
            found.append((device.name, bound.pci_id, bound.driver))
    return found
