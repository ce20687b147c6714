"""The changes to llama.cpp's source apply exactly or not at all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "deploy"))

from engine_source import CHANGES, SourceChangedError, apply


def write(folder: Path, text: str) -> None:
    path = folder / CHANGES[0].path
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_the_text_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, f"before {CHANGES[0].old} after")
    apply(tmp_path, CHANGES[0])
    assert (tmp_path / CHANGES[0].path).read_text() == f"before {CHANGES[0].new} after"


@pytest.mark.parametrize("times", [0, 2])
def test_another_release_is_refused(tmp_path: Path, times: int) -> None:
    write(tmp_path, CHANGES[0].old * times)
    with pytest.raises(SourceChangedError, match=f"found {times} times"):
        apply(tmp_path, CHANGES[0])
