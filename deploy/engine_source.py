"""llama-cpp-python's source release, with the changes that batch invariance needs.

llama.cpp splits the attention of a lone sequence with 512 or more KV cells over
its threads, and does not in a batch of several (`use_split_kv_path` in
ggml-cpu/ops.cpp). The two round differently, so that a text would depend on what
else runs. Built with this change, a sequence is computed alike alone and in a
batch. An unchanged library works too: the engine measures the difference at load
and then decodes long sequences one by one, which is exact and slower.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Change:
    """One replacement in one file of the release; `old` occurs there exactly once."""

    path: str
    old: str
    new: str


CHANGES = (
    Change(
        "vendor/llama.cpp/ggml/src/ggml-cpu/ops.cpp",
        "const bool use_split_kv_path = !use_ref && ",
        "const bool use_split_kv_path = false && !use_ref && ",
    ),
)


class SourceChangedError(Exception):
    """The release does not hold the text that a change replaces."""


def changes_digest() -> str:
    """Hex digest that is part of a built wheel's cache key."""
    text = "\n".join(part for change in CHANGES for part in (change.path, change.old, change.new))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def unpack_changed(package: str, version: str, folder: Path) -> Path:
    """Download the source release into `folder`, unpack and change it; the source's folder.

    Raises SourceChangedError when a change does not apply, CalledProcessError when
    the download fails.
    """
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"),
            *("--no-binary", package, "--dest", str(folder), f"{package}=={version}"),
        ],
        check=True,
    )
    archive = next(folder.glob("*.tar.gz"))
    with tarfile.open(archive) as release:
        release.extractall(folder, filter="data")
    source = folder / archive.name.removesuffix(".tar.gz")
    for change in CHANGES:
        apply(source, change)
    return source


def apply(source: Path, change: Change) -> None:
    """Make one change below `source`; raises SourceChangedError when it does not fit."""
    path = source / change.path
    text = path.read_text()
    if text.count(change.old) != 1:
        raise SourceChangedError(
            f"{change.path}: expected once, found {text.count(change.old)} times: {change.old!r}"
        )
    path.write_text(text.replace(change.old, change.new))
