"""The files of deployed models on this device's disk: `<hash>/<name>.gguf` below one folder.

What was used longest ago goes first when a new file would pass the budget or the disk's
headroom; files in use never go.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from shoal.model_fetch import HEADROOM_BYTES, DiskFullError

# Of the disk as it would be without the shelf: the device has other things to keep.
BUDGET_SHARE = 0.5
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.gguf", re.IGNORECASE)
_FOLDER = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class _Kept:
    folder: Path
    size_bytes: int
    used_s: float


class Shelf:
    """Files by their hash."""

    def __init__(self, root: Path, budget_bytes: int | None = None) -> None:
        self._root = root
        self._budget_bytes = budget_bytes

    def place(self, sha256: str, file: str) -> Path:
        """Where a file of that hash lies, or is to; its name stays, for it tells the variant."""
        name = file if _SAFE.fullmatch(file) else "model.gguf"
        return self._root / sha256[:16] / name

    def touch(self, path: Path) -> None:
        """The file is used now."""
        os.utime(path.parent)

    def make_room(self, wanted_bytes: int, in_use: Collection[Path]) -> list[Path]:
        """Remove what was used longest ago until `wanted_bytes` more fit; the folders removed.

        Raises DiskFullError when that is not enough, and then removes nothing.
        """
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = sorted(self._kept(), key=lambda each: each.used_s)
        used = sum(each.size_bytes for each in kept)
        free = shutil.disk_usage(self._root).free
        budget = self._budget_bytes
        if budget is None:
            budget = int((free + used) * BUDGET_SHARE)
        over = max(used + wanted_bytes - budget, wanted_bytes + HEADROOM_BYTES - free)
        going: list[_Kept] = []
        for each in kept:
            if over <= 0:
                break
            if each.folder not in {path.parent for path in in_use}:
                going.append(each)
                over -= each.size_bytes
        if over > 0:
            raise DiskFullError(
                f"no room: {wanted_bytes} bytes more, {used} are used of a budget of {budget}, "
                f"{free} are free and {HEADROOM_BYTES} of them are kept free"
            )
        for each in going:
            shutil.rmtree(each.folder)
        return [each.folder for each in going]

    def _kept(self) -> list[_Kept]:
        found = []
        for folder in self._root.iterdir():
            if folder.is_dir() and _FOLDER.fullmatch(folder.name):
                size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
                found.append(_Kept(folder, size, folder.stat().st_mtime))
        return found
