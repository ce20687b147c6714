"""A Debian root of another architecture, whose programs run under qemu's user emulation."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SUITE = "bookworm"
PACKAGES = "python3,python3-venv,curl,ca-certificates,procps,util-linux,passwd,libgomp1"
# The core of a Raspberry Pi 5: dot products and half precision, no SVE.
QEMU_CPU = "cortex-a76"
_CPU_PART = "0xd0b"
_BINFMT = Path("/proc/sys/fs/binfmt_misc")
_BINFMT_CONFIG = Path("/usr/lib/binfmt.d/qemu-aarch64.conf")
# Linux' names of the bits of AT_HWCAP (arch/arm64/include/uapi/asm/hwcap.h).
_HWCAPS = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma "
    "lrcpc dcpop sha3 sm3 sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs sb paca pacg"
)
_ASK_HWCAP = (
    "import ctypes; c = ctypes.CDLL(None); c.getauxval.restype = ctypes.c_ulong; "
    "print(c.getauxval(16))"
)


def missing() -> str:
    """Why no such root can be made here; empty when it can."""
    if os.getuid() != 0:
        return "root is needed (chroot, mounts)"
    tools = {
        "debootstrap": "debootstrap",
        "qemu-aarch64-static": "qemu-user-static",
        "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    }
    absent = [package for tool, package in tools.items() if not shutil.which(tool)]
    return f"apt install {' '.join(absent)}" if absent else ""


@dataclass(frozen=True, slots=True)
class ArmRoot:
    """The folder of the root; mounted in this process's mount namespace."""

    folder: Path

    def prepare(self, mirror: str) -> None:
        """Make the root once (some minutes), then mount what its programs look for."""
        _register_qemu()
        self._bootstrap(mirror)
        self._mount()

    def _bootstrap(self, mirror: str) -> None:
        if (self.folder / "complete").exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [
                *("debootstrap", "--arch=arm64", "--variant=minbase", f"--include={PACKAGES}"),
                *(SUITE, str(self.folder), *([mirror] if mirror else [])),
            ],
            check=True,
        )
        (self.folder / "complete").touch()

    def _mount(self) -> None:
        run = ["mount", "-t", "proc", "proc", str(self.folder / "proc")]
        subprocess.run(run, check=True)
        for device in ("null", "zero", "random", "urandom"):
            place = self.folder / "dev" / device
            place.touch()
            subprocess.run(["mount", "--bind", f"/dev/{device}", str(place)], check=True)
        # How this machine finds names and whom it trusts: it may sit behind a proxy.
        for name in ("resolv.conf", "hosts", "ssl/certs/ca-certificates.crt"):
            if Path("/etc", name).exists():
                shutil.copy(Path("/etc", name), self.folder / "etc" / name)
        # qemu shows the host's CPU in /proc/cpuinfo; what it emulates it says in AT_HWCAP.
        cpuinfo = self.folder / "tmp" / "cpuinfo"
        cpuinfo.write_text(self._cpuinfo())
        target = self.folder / "proc/cpuinfo"
        subprocess.run(["mount", "--bind", str(cpuinfo), str(target)], check=True)

    def _cpuinfo(self) -> str:
        bits = int(self.run(f'python3 -c "{_ASK_HWCAP}"').stdout)
        features = " ".join(name for bit, name in enumerate(_HWCAPS.split()) if bits >> bit & 1)
        one = (
            "processor\t: {0}\nFeatures\t: {1}\nCPU implementer\t: 0x41\n"
            "CPU architecture: 8\nCPU part\t: {2}\n\n"
        )
        return one.format(0, features, _CPU_PART)

    def run(self, line: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A line of shell inside; RuntimeError with its last words, not the line, when it fails."""
        # One core: under emulation an engine's threads mostly wait for one another.
        core = str(max(os.sched_getaffinity(0)))
        done = subprocess.run(
            ["taskset", "-c", core, "chroot", str(self.folder), "sh", "-c", line],
            env={
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": "/root", "LANG": "C.UTF-8", "QEMU_CPU": QEMU_CPU,
            } | environment,
            text=True, capture_output=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"in the root: {done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done


def _register_qemu() -> None:
    """Let the kernel run ARM programs by qemu, if it does not yet; that stays until reboot."""
    if not (_BINFMT / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(_BINFMT)], check=True)
    if not (_BINFMT / "qemu-aarch64").exists():
        rule = next(line for line in _BINFMT_CONFIG.read_text().splitlines() if line[:1] == ":")
        (_BINFMT / "register").write_text(rule)
