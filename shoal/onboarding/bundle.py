"""One tar with all that a device without a network needs; every file with its hash.

It fits machines of the same kind only: Python's minor version, processor
architecture, and for the engine the CPU's instruction sets and the C library.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from shoal.onboarding.depot import (
    CONSTRAINTS_NAME,
    SUMS_NAME,
    DepotFile,
    engine_wheels,
    packaged_models,
    sums_text,
)
from shoal.onboarding.script import filled_script
from shoal.onboarding.sources import constraints_file, device_requirements
from shoal.onboarding.wheel import build_wheel

SCRIPT_NAME = "install.sh"
PLATFORM_NAME = "PLATFORM"
# redis asks for it on a Python before 3.11.3, which the device may have and this machine not.
_OLDER_PYTHON = ("async-timeout>=4.0.3",)
# Dependencies are some 30 MB; a slow package index is given its time.
_DOWNLOAD_LIMIT_S = 900


class BundleError(Exception):
    """The bundle cannot be made; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that was written."""

    path: Path
    sha256: str
    script_sha256: str
    files: tuple[DepotFile, ...]


def this_platform() -> str:
    """Python's minor version and the machine, as the install script compares them."""
    return f"{sys.version_info.major}.{sys.version_info.minor}-{platform.machine()}"


def create_bundle(output: Path, models: tuple[Path, ...], gateway_url: str) -> Bundle:
    """Gather everything and write `output`; pip downloads the dependencies.

    `gateway_url` may be empty: then it is given at the installation. Raises
    BundleError, sources.SourcesMissingError, ValueError for names with spaces, OSError.
    """
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".bundle-") as scratch:
        folder = Path(scratch)
        files = tuple(DepotFile.of(name, path) for name, path in _entries(folder, models))
        sums = sums_text(files)
        script = filled_script(gateway_url, hashlib.sha256(sums).hexdigest())
        written = folder / "bundle.tar"
        with tarfile.open(written, "w", format=tarfile.USTAR_FORMAT) as tar:
            for name, content in ((SCRIPT_NAME, script), (SUMS_NAME, sums)):
                _add_bytes(tar, folder, name, content)
            for file in files:
                tar.add(file.path, arcname=file.name, filter=_anonymous)
        digest = DepotFile.of(output.name.replace(" ", "-"), written).sha256
        written.replace(output)
    return Bundle(output, digest, hashlib.sha256(script).hexdigest(), files)


def _entries(folder: Path, models: tuple[Path, ...]) -> list[tuple[str, Path]]:
    platform_file = folder / PLATFORM_NAME
    platform_file.write_text(this_platform() + "\n", encoding="ascii")
    wheel = build_wheel()
    (folder / wheel.name).write_bytes(wheel.content)
    engines = list(engine_wheels())
    if not engines:
        raise BundleError("no engine was built and proven here; run `make engine` first")
    dependencies = _download_dependencies(folder / "wheels")
    return [
        (PLATFORM_NAME, platform_file),
        (wheel.name, folder / wheel.name),
        (CONSTRAINTS_NAME, constraints_file()),
        *((f"wheels/{path.name}", path) for path in dependencies),
        *engines,
        *packaged_models(),
        *((f"models/{path.name}", path) for path in models),
    ]


def _download_dependencies(target: Path) -> list[Path]:
    """Wheels for this platform, of the releases in the constraints."""
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--only-binary", ":all:", "--constraint", str(constraints_file())),
        *("--dest", str(target), *device_requirements(), *_OLDER_PYTHON),
    ]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_DOWNLOAD_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise BundleError(f"pip did not finish within {_DOWNLOAD_LIMIT_S} s") from error
    if done.returncode != 0:
        raise BundleError(f"pip could not download the dependencies:\n{done.stderr[-2000:]}")
    return sorted(target.glob("*.whl"))


def _add_bytes(tar: tarfile.TarFile, folder: Path, name: str, content: bytes) -> None:
    path = folder / name
    path.write_bytes(content)
    tar.add(path, arcname=name, filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Who made it, and when, is nobody's business, and same content gives the same bytes."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    entry.mode = 0o755 if entry.name == SCRIPT_NAME else 0o644
    return entry
