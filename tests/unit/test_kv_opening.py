from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.kv.layout import Geometry
from agent.kv.opening import KvSettings, local_secret, model_folder, open_prefix_cache
from agent.kv.selfcheck import CodecReport
from agent.kv.sharing import SharedTierConfig
from shoal.blocks import BlockSpace
from tests.harness.kv_rig import GEOMETRY

SPACE = BlockSpace("model", "f16", "f16", "1", b"")
REPORT = CodecReport(GEOMETRY, 4, "")


class NoContext:
    """A port that is never used here."""

    def state_get(self, slot: int, /) -> memoryview:
        raise NotImplementedError

    def state_buffer(self, num_bytes: int, /) -> memoryview:
        return memoryview(bytearray(num_bytes))

    def state_set(self, slot: int, blob: memoryview, /) -> int:
        raise NotImplementedError

    def clear(self, slot: int, /) -> None:
        raise NotImplementedError


def open_with(settings: KvSettings, report: CodecReport = REPORT) -> None:
    open_prefix_cache(settings, NoContext(), SPACE, report, lambda: None).cache.shut_down()


def test_a_model_without_a_known_layout_is_not_opened() -> None:
    with pytest.raises(ValueError, match="second cache"):
        open_with(KvSettings(1000), CodecReport(None, 0, "second cache"))


def test_sharing_without_the_fleets_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="fleet's secret"):
        open_with(KvSettings(1000, shared=SharedTierConfig("unix:///nowhere")))


def test_each_model_has_a_folder_of_its_own(tmp_path: Path) -> None:
    open_with(KvSettings(1000, 1000, tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {model_folder(SPACE, GEOMETRY), "secret"}
    other = replace(SPACE, key_type="q8_0")
    assert model_folder(other, GEOMETRY) != model_folder(SPACE, GEOMETRY)
    assert model_folder(SPACE, Geometry(1, GEOMETRY.caches)) != model_folder(SPACE, GEOMETRY)


def test_the_devices_secret_is_private_lasting_and_replaced_when_damaged(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    made = local_secret(path)
    assert local_secret(path) == made
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"short")
    assert local_secret(path) != made
    assert path.stat().st_mode & 0o777 == 0o600
