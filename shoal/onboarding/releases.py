"""Versions that installed devices can be given: the orchestrator's own, and wheels put beside it.

Who can write into the depot's folder `releases` can change the orchestrator itself: that
folder asks for no more trust than the rest of the state directory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shoal.onboarding.depot import CONSTRAINTS_NAME, Depot, DepotFile
from shoal.onboarding.wheel import wheel_name

FOLDER = "releases"
_WHEEL = re.compile(r"shoal_agent-([A-Za-z0-9][A-Za-z0-9.+!]*)-py3-none-any\.whl")


@dataclass(frozen=True, slots=True)
class Release:
    """A version and the files that a device needs for it, the wheel first."""

    version: str
    files: tuple[DepotFile, ...]

    @property
    def wheel(self) -> DepotFile:
        """Agent and engine host."""
        return self.files[0]

    @property
    def release(self) -> str:
        """As devices name its environment."""
        return f"{self.version}-{self.wheel.sha256[:12]}"


def list_releases(depot: Depot) -> list[Release]:
    """The orchestrator's own version first, then those in the folder by name."""
    beside = tuple(
        file
        for file in depot.files
        if file.name == CONSTRAINTS_NAME or file.name.startswith("engine/")
    )
    releases = []
    own = depot.find(wheel_name())
    if own is not None:
        match = _WHEEL.fullmatch(own.name)
        if match:
            releases.append(Release(match[1], (own, *beside)))
        for path in sorted((own.path.parent / FOLDER).glob("*.whl")):
            if match := _WHEEL.fullmatch(path.name):
                releases.append(
                    Release(match[1], (DepotFile.of(f"{FOLDER}/{path.name}", path), *beside))
                )
    return releases


def find_release(depot: Depot, version: str) -> Release | None:
    """The release of that version, empty: the orchestrator's own; None when there is none."""
    releases = list_releases(depot)
    wanted = [each for each in releases if version in ("", each.version)]
    return wanted[0] if wanted else None


def find_file(depot: Depot, name: str) -> DepotFile | None:
    """A file that devices may fetch: one of the depot's, or a release's wheel."""
    found = depot.find(name)
    if found is not None or not name.startswith(f"{FOLDER}/"):
        return found
    wheels = (release.wheel for release in list_releases(depot))
    return next((wheel for wheel in wheels if wheel.name == name), None)
