"""The device's parts as they lie in this installation: packages, requirements, build scripts."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
import tomllib
from pathlib import Path

# A device installs these and nothing of the orchestrator.
DEVICE_PACKAGES = ("agent", "shoal")
DEVICE_EXTRA = "agent"
# Of the folder that builds the engine a device gets all but the developer's tools.
_DEVELOPERS = frozenset(
    {"audit.py", "cross_engine.py", "stubs.py", "find_python.sh", "pip_progress.awk"}
)
_SHARED = Path("share", "shoal")
_PACKAGE = Path(__file__).parents[1]
_CHECKOUT = _PACKAGE.parent


class SourcesMissingError(Exception):
    """This installation lacks a part of the device's wheel; the message names it."""


def package_files(package: str) -> dict[str, Path]:
    """Files of an importable package by their name in a wheel; nothing is imported.

    Raises SourcesMissingError.
    """
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        raise SourcesMissingError(f"the package {package} is not installed here")
    root = Path(folders[0])
    return {
        f"{package}/{path.relative_to(root).as_posix()}": path
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def build_scripts() -> dict[str, Path]:
    """What builds and proves the engine, by relative name; one folder, they import each other.

    Raises SourcesMissingError.
    """
    folder = _first("deploy", "build_engine.py")
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.name not in _DEVELOPERS
    }


def constraints_file() -> Path:
    """The releases that this version is tested with; raises SourcesMissingError."""
    return _first("", "constraints.txt") / "constraints.txt"


def install_script() -> Path:
    """The install script before anything is filled in."""
    return _PACKAGE / "onboarding" / "install.sh"


def control_script() -> Path:
    """The script that starts and stops a device's agent."""
    return _PACKAGE / "onboarding" / "shoal-agent.sh"


def device_requirements() -> list[str]:
    """What pip must install for a device, from the project's own list.

    A checkout's pyproject.toml comes first: an editable installation's metadata is
    as old as the installation.
    """
    project = _CHECKOUT / "pyproject.toml"
    if project.is_file():
        table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        if table.get("name") == "shoal":
            return [*table["dependencies"], *table["optional-dependencies"][DEVICE_EXTRA]]
    return _of_device(importlib.metadata.requires("shoal") or [])


def _of_device(requirements: list[str]) -> list[str]:
    """Those without an extra and those of the device's, whose marker is left out."""
    chosen = []
    for requirement in requirements:
        text, _, marker = requirement.partition(";")
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
        if extra is None:
            chosen.append(requirement)
        elif extra[1] == DEVICE_EXTRA:
            chosen.append(text.strip())
    return chosen


def _first(folder: str, file: str) -> Path:
    """The folder in a checkout, else in the environment, that holds `file`."""
    for root in (_CHECKOUT, Path(sys.prefix) / _SHARED):
        if (root / folder / file).is_file():
            return root / folder
    raise SourcesMissingError(f"{Path(folder, file)} is neither beside the source nor installed")
