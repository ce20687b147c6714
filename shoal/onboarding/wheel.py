"""The device's wheel, packed from this installation: same source, same bytes.

Written by hand rather than by a build backend: a backend would be fetched from a
package index each time a fleet starts, and a device must get what runs here. The
format is the packaging specification "binary distribution format".
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from dataclasses import dataclass

from shoal import __version__
from shoal.onboarding import sources

DISTRIBUTION = "shoal-agent"
# Where a device finds the build scripts, below its environment.
BUILD_FOLDER = "share/shoal/deploy"
# The oldest time that a zip file can hold: the bytes depend on the content alone.
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
_PLAIN, _EXECUTABLE = 0o100644, 0o100755
_ENTRY_POINTS = "[console_scripts]\nshoal = shoal.cli.app:main\n"


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel in memory."""

    name: str
    content: bytes


def wheel_name(version: str = __version__) -> str:
    """File name of the device's wheel; pure Python, so one for every device."""
    return f"{_stem(version)}-py3-none-any.whl"


def build_wheel() -> Wheel:
    """Pack agent, shoal, the build scripts and the control script.

    Raises sources.SourcesMissingError.
    """
    stem = _stem(__version__)
    data = f"{stem}.data"
    packed = _Packed()
    for package in sources.DEVICE_PACKAGES:
        for name, path in sources.package_files(package).items():
            packed.add(name, path.read_bytes())
    for name, path in sources.build_scripts().items():
        packed.add(f"{data}/data/{BUILD_FOLDER}/{name}", path.read_bytes())
    packed.add(f"{data}/scripts/shoal-agent", sources.control_script().read_bytes(), _EXECUTABLE)
    info = f"{stem}.dist-info"
    packed.add(f"{info}/METADATA", _metadata(sources.device_requirements()).encode())
    packed.add(f"{info}/WHEEL", _wheel_file().encode())
    packed.add(f"{info}/entry_points.txt", _ENTRY_POINTS.encode())
    return Wheel(wheel_name(), packed.finish(f"{info}/RECORD"))


def _stem(version: str) -> str:
    return f"{DISTRIBUTION.replace('-', '_')}-{version}"


def _metadata(requirements: list[str]) -> str:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {DISTRIBUTION}",
        f"Version: {__version__}",
        "Summary: A device of a shoal fleet: agent, engine and their command line",
        "Requires-Python: >=3.11",
        *(f"Requires-Dist: {requirement}" for requirement in requirements),
    ]
    return "\n".join(lines) + "\n"


def _wheel_file() -> str:
    return "Wheel-Version: 1.0\nGenerator: shoal\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


class _Packed:
    """A growing zip file and the record of its members."""

    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        self._zip = zipfile.ZipFile(self._bytes, "w", zipfile.ZIP_DEFLATED)
        self._record: list[str] = []

    def add(self, name: str, content: bytes, mode: int = _PLAIN) -> None:
        entry = zipfile.ZipInfo(name, _ZIP_TIME)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = mode << 16
        self._zip.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self._record.append(f"{name},sha256={digest},{len(content)}")

    def finish(self, record_name: str) -> bytes:
        text = "\n".join([*self._record, f"{record_name},,"]) + "\n"
        self.add(record_name, text.encode())
        self._zip.close()
        return self._bytes.getvalue()
