"""Which deployed files go when room is needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.models.shelf import Shelf
from shoal.model_fetch import DiskFullError


def kept(shelf: Shelf, letter: str, size: int, used_s: int) -> Path:
    path = shelf.place(letter * 64, "m.Q4_0.gguf")
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(size))
    os.utime(path.parent, (used_s, used_s))
    return path


def test_longest_unused_goes_first_and_what_is_in_use_stays(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, budget_bytes=3000)
    oldest, middle, newest = (kept(shelf, c, 1000, n) for n, c in enumerate("abc", 1))
    assert shelf.make_room(1000, [oldest]) == [middle.parent]
    assert oldest.exists()
    assert newest.exists()


def test_file_that_can_never_fit_removes_nothing(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, budget_bytes=3000)
    path = kept(shelf, "a", 1000, 1)
    with pytest.raises(DiskFullError, match="budget of 3000"):
        shelf.make_room(5000, [])
    with pytest.raises(DiskFullError, match="no room"):
        Shelf(tmp_path).make_room(1 << 60, [])
    assert path.exists()


def test_names_that_lead_elsewhere_are_not_used(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    for name in ("../../x.gguf", "/etc/x.gguf", "", "x.bin", ".gguf"):
        assert shelf.place("a" * 64, name) == tmp_path / ("a" * 16) / "model.gguf"
