"""Which build of llama-cpp-python fits this CPU: pure decisions, no effects.

A native build (`GGML_NATIVE=ON`) uses AMX where the CPU reports it and dies with
SIGSEGV on the first decode under some hypervisors (llama.cpp issue 20824), so
the instruction sets are named one by one and AMX is never among them. pip's own
wheel cache does not know CMAKE_ARGS, so builds are kept under a key that does.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from engine_source import changes_digest

PACKAGE = "llama-cpp-python"
VERSION = "0.3.36"

# ggml turns these on by itself in a build that is not native (ggml/CMakeLists.txt).
X86_DEFAULTS = {"avx2": "AVX2", "avx": "AVX", "fma": "FMA", "f16c": "F16C", "bmi2": "BMI2"}
# GGML_AVX512 uses all five of these (ggml-cpu/CMakeLists.txt).
X86_AVX512 = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})
X86_EXTRAS = {
    "avx512_vnni": "AVX512_VNNI",
    "avx512vbmi": "AVX512_VBMI",
    "avx512_bf16": "AVX512_BF16",
}
# Linux hwcap name -> suffix of -march; the order is the one gcc's manual lists.
ARM_SUFFIXES = {"asimddp": "dotprod", "asimdhp": "fp16", "i8mm": "i8mm"}


@dataclass(frozen=True, slots=True)
class Build:
    """One way to build the engine's library."""

    name: str
    cmake_args: tuple[str, ...]

    def key(self, machine: str, abi: str) -> str:
        """Name of the cache entry: everything that decides the bytes of the wheel."""
        text = "\n".join([VERSION, changes_digest(), machine, abi, *self.cmake_args])
        return f"{VERSION}-{machine}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def cpu_features(cpuinfo: str) -> frozenset[str]:
    """Feature names that every processor in the text of /proc/cpuinfo has."""
    lines = re.findall(r"^(?:flags|Features)\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    sets = [frozenset(line.split()) for line in lines]
    return frozenset.intersection(*sets) if sets else frozenset()


def wanted_builds(machine: str, features: frozenset[str]) -> tuple[Build, ...]:
    """The builds to try, best first; each later one uses fewer instruction sets."""
    if machine in ("x86_64", "AMD64"):
        return _x86_builds(features)
    if machine in ("aarch64", "arm64"):
        return _arm_builds(features)
    return (Build("portable", ("-DGGML_NATIVE=OFF",)),)


def _x86_builds(features: frozenset[str]) -> tuple[Build, ...]:
    missing = tuple(
        f"-DGGML_{option}=OFF" for flag, option in X86_DEFAULTS.items() if flag not in features
    )
    baseline = Build("baseline", ("-DGGML_NATIVE=OFF", *missing))
    if missing or not features >= X86_AVX512:
        return (baseline,)
    extras = tuple(f"-DGGML_{option}=ON" for flag, option in X86_EXTRAS.items() if flag in features)
    return (Build("avx512", ("-DGGML_NATIVE=OFF", "-DGGML_AVX512=ON", *extras)), baseline)


def _arm_builds(features: frozenset[str]) -> tuple[Build, ...]:
    suffixes = [suffix for flag, suffix in ARM_SUFFIXES.items() if flag in features]
    baseline = Build("baseline", ("-DGGML_NATIVE=OFF", "-DGGML_CPU_ARM_ARCH=armv8-a"))
    if not suffixes:
        return (baseline,)
    arch = "+".join(["armv8.2-a", *suffixes])
    return (Build(arch, ("-DGGML_NATIVE=OFF", f"-DGGML_CPU_ARM_ARCH={arch}")), baseline)
