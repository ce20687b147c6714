from __future__ import annotations

from pathlib import Path

import pytest

from agent.hardware.meters import find_meters
from agent.hardware.report import detect
from tests.harness import device_trees as trees
from tests.harness import device_trees_boards as boards
from tests.harness.device_trees_boards import BOARDS, Board


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS.keys())
def test_board_is_detected_right(tmp_path: Path, board: Board) -> None:
    found = detect(trees.plant(tmp_path, board.tree), architecture=board.architecture)
    assert found.detected_class == board.detected_class
    assert found.cpu_model == board.cpu_model
    assert found.cores == board.cores
    assert board.features <= set(found.cpu_features)
    assert not board.lacks & set(found.cpu_features)
    seen = found.accelerators
    assert [(a.kind, a.vendor, a.unified_memory) for a in seen] == [
        (kind, vendor, unified) for kind, vendor, _, unified in board.accelerators
    ]
    for accelerator, (_, _, model, unified) in zip(seen, board.accelerators, strict=True):
        assert model in accelerator.model
        assert accelerator.served_by == ""
        assert not unified or accelerator.memory_bytes == found.memory_bytes
    assert found.power_meters == board.meters
    assert found.power_source == board.power_source
    assert set(board.labels) <= set(found.labels.items())
    for words in board.notes:
        assert any(words in note for note in found.notes), found.notes
    if board.source != "made up":
        assert not any(note.endswith(": not known") for note in found.notes)


def test_unknown_hardware_is_told_and_not_guessed(tmp_path: Path) -> None:
    found = detect(trees.plant(tmp_path, boards.UNKNOWN.tree), architecture="riscv64")
    assert found.accelerators == ()
    assert found.device_class == ""
    assert found.tdp_w is None


def test_agx_orins_rails_count_together(tmp_path: Path) -> None:
    meters, _ = find_meters(trees.plant(tmp_path, boards.AGX_ORIN.tree))
    interval = meters.between(meters.read(0.0), meters.read(1.0))
    assert interval is not None
    assert interval.joules == pytest.approx(19.904 * 0.2 + 4.984 * 0.608)


def test_old_jetsons_board_rail_is_read_in_milliwatts(tmp_path: Path) -> None:
    meters, _ = find_meters(trees.plant(tmp_path, boards.JETSON_NANO.tree))
    interval = meters.between(meters.read(0.0), meters.read(1.0))
    assert interval is not None
    assert interval.joules == pytest.approx(2.54)


def test_companion_makes_its_accelerator_the_devices_class(tmp_path: Path) -> None:
    root = trees.plant(tmp_path, boards.ROCK_5B.tree)
    found = detect(
        root, declared_class="npu", architecture="aarch64", served_by={"npu": "companion qwen"}
    )
    assert (found.device_class, found.detected_class) == ("npu", "npu")
    assert not found.emulated
    assert [a.served_by for a in found.accelerators] == ["", "companion qwen"]
