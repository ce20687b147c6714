"""What the CPU is: architecture, class, model, features, load."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from agent.hardware.arm_cores import core_name
from agent.hardware.files import read_fields, read_text

# The instruction sets that decide which of llama.cpp's kernels run.
# fmt: off
_FEATURES = frozenset((
    "avx", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512vbmi",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "f16c", "fma", "sse4_2",
    "neon", "asimd", "asimdhp", "fphp", "asimddp", "i8mm", "bf16", "sve", "sve2", "svei8mm",
    "sme", "sme2",
))
# fmt: on


@dataclass(frozen=True, slots=True)
class Cpu:
    """One machine's CPU; `device_class` is "" when it is neither Arm nor x86."""

    architecture: str
    device_class: str
    model: str
    cores: int
    features: tuple[str, ...]


def detect_cpu(root: Path, architecture: str = "") -> Cpu:
    """Read the CPU from `root`/proc; `architecture` (uname -m) defaults to this machine's."""
    machine = architecture or platform.machine()
    text = read_text(root / "proc/cpuinfo") or ""
    cores = sum(line.startswith("processor") for line in text.splitlines())
    fields = read_fields(root / "proc/cpuinfo")
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return Cpu(
        architecture=machine,
        device_class=_class_of(machine),
        model=fields.get("model name") or _arm_model(text),
        cores=cores,
        features=tuple(sorted(_FEATURES.intersection(flags))),
    )


def _class_of(machine: str) -> str:
    if machine.startswith(("aarch64", "arm")):
        return "arm_cpu"
    if machine in ("x86_64", "amd64", "i686", "i386"):
        return "x86_cpu"
    return ""


def _arm_model(cpuinfo: str) -> str:
    """Distinct core names in order of appearance, e.g. "Cortex-A55 + Cortex-A76"."""
    names: dict[str, None] = {}
    implementer = ""
    for line in cpuinfo.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "CPU implementer":
            implementer = value
        elif key == "CPU part":
            names[core_name(implementer, value)] = None
    return " + ".join(names)


def read_cpu_times(root: Path) -> tuple[int, int] | None:
    """(busy, total) jiffies of all cores since boot; None when unknown."""
    first = (read_text(root / "proc/stat") or "").partition("\n")[0].split()
    if not first or first[0] != "cpu":
        return None
    ticks = [int(value) for value in first[1:9]]
    idle = ticks[3] + ticks[4]  # idle and waiting for I/O
    return sum(ticks) - idle, sum(ticks)
