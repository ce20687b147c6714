"""The folder of upgrades: what `shoal-agent run` reads, which decides what runs.

current   link to the environment in use; absent: the one that install.sh made
previous  the link's target before; empty: install.sh's
trial     release and seconds until it must be confirmed; absent: nothing is on trial
starts    one line for each start on trial
refused   why the hub did not confirm it
failed    the last release that was given up, and why
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

FOLDER = "upgrades"
COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class UpgradeState:
    """Where this device stands; empty strings: nothing of the kind."""

    trial: str = ""
    failed: str = ""
    failure: str = ""


class UpgradeFolder:
    """Reads and changes the folder; every change is complete or not there."""

    def __init__(self, home: Path) -> None:
        self.path = home / FOLDER
        self.versions = self.path / "versions"

    def state(self) -> UpgradeState:
        """What the hub is told when the agent connects."""
        trial = self._lines("trial")
        failed = self._lines("failed")
        return UpgradeState(
            trial=trial[0] if trial else "",
            failed=failed[0] if failed else "",
            failure=failed[1] if len(failed) > 1 else "",
        )

    def switch(self, release: str, ready_within_s: int) -> None:
        """The next start is of this release, on trial."""
        current = self.path / "current"
        previous = os.readlink(current) if current.is_symlink() else ""
        for name in ("starts", "late", "refused", "failed"):
            (self.path / name).unlink(missing_ok=True)
        self._write("previous", previous)
        link = self.path / "current.new"
        link.unlink(missing_ok=True)
        link.symlink_to(Path("versions", release))
        # The trial before the link: whatever stops us in between, it has a watchdog.
        self._write("trial", f"{release}\n{ready_within_s}")
        link.replace(current)

    def keep(self) -> None:
        """The release on trial stays; all but it and the one before are removed."""
        previous = "".join(self._lines("previous"))
        current = os.readlink(self.path / "current")
        for name in ("trial", "starts"):
            (self.path / name).unlink(missing_ok=True)
        for version in self.versions.iterdir():
            if version.name not in (Path(current).name, Path(previous).name):
                shutil.rmtree(version)

    def refuse(self, reason: str) -> None:
        """The release on trial goes with this process."""
        self._write("refused", " ".join(reason.split())[:500])

    def _lines(self, name: str) -> list[str]:
        try:
            return (self.path / name).read_text(encoding="utf-8").splitlines()
        except OSError:
            return []

    def _write(self, name: str, text: str) -> None:
        fresh = self.path / f"{name}.new"
        fresh.write_text(text + "\n", encoding="utf-8")
        fresh.replace(self.path / name)
