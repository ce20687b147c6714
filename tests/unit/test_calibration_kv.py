"""Which KV type engines get: for want of room or for speed, and never at the cost of exactness."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.calibration import in_use
from agent.calibration.choosing import Choice
from agent.calibration.in_use import calibrated, for_engines
from agent.calibration.kv_types import KvTried, KvWish, choose_kv_type, shortage_of_f16
from agent.calibration.store import CalibrationStore, key_of
from agent.hardware.memory import Memory
from agent.hardware.report import detect
from agent.rpc.engines import Calibrated
from agent.session.config import read_config
from shoal.gguf_facts import GgufFacts
from shoal.kv_budget import MIB
from tests.harness.tiny_llama_model import write_tiny_llama_model

# SmolLM2-135M: 23,040 bytes a token in f16.
FACTS = GgufFacts(
    architecture="llama",
    quantisation="Q4_0",
    num_parameters=135_000_000,
    file_bytes=92 * MIB,
    context_tokens=8192,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    key_head_dim=64,
    value_head_dim=64,
    vocab_tokens=49_152,
    has_chat_template=True,
)
SLOWER = KvTried(f16_s=2.0, q8_0_s=3.0, invariant=True)


@pytest.mark.parametrize(
    ("tried", "shortage", "name", "word"),
    [
        (SLOWER, "", "f16", "not clearly faster"),
        (SLOWER, "f16 leaves 512 tokens", "q8_0", "f16 leaves 512 tokens"),
        (KvTried(2.0, 1.7, invariant=True), "", "f16", "not clearly faster"),
        (KvTried(2.0, 1.5, invariant=True, confirmed=True), "", "q8_0", "faster, 1.50 s"),
        (KvTried(2.0, 1.5, invariant=True), "", "f16", "not measured twice"),
        (KvTried(2.0, 1.5, invariant=True), "short", "q8_0", "short"),
        (KvTried(2.0, 0.5, invariant=False), "short", "f16", "depend on how the work is cut"),
        (KvTried(2.0, failure="killed by SIGSEGV"), "short", "f16", "killed by SIGSEGV"),
    ],
)
def test_kv_type_and_its_reason(tried: KvTried, shortage: str, name: str, word: str) -> None:
    chosen = choose_kv_type(tried, shortage)
    assert chosen.name == name
    assert word in chosen.why


def test_usual_context_is_what_f16_should_leave() -> None:
    # A quarter of it for eight sequences: 1,456 tokens each in f16, and 2,741 in q8_0.
    assert "1280 tokens" in shortage_of_f16(FACTS, KvWish(), 8, 1024 * MIB)
    assert not shortage_of_f16(FACTS, KvWish(), 4, 1024 * MIB)
    assert not shortage_of_f16(FACTS, KvWish(), 8, 16 * 1024 * MIB)


def test_context_that_the_owner_wants_must_fit_into_what_is_free() -> None:
    wish = KvWish(slots=4, context_tokens=8192)
    assert not shortage_of_f16(FACTS, wish, 8, 4096 * MIB)
    assert "not for 4 of 8192" in shortage_of_f16(FACTS, wish, 8, 1400 * MIB)
    assert "0 sequences" in shortage_of_f16(FACTS, wish, 8, 600 * MIB)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of which a calibration is kept, as made for this machine."""
    file = write_tiny_llama_model(tmp_path / "Tiny-1M.F32.gguf")
    CalibrationStore(tmp_path).keep(
        "tiny-1m", key_of(detect(), [file]), Choice(file, 2, 4, SLOWER), []
    )
    return file


def in_use_with(
    monkeypatch: pytest.MonkeyPatch, model: Path, free_bytes: int, *flags: str
) -> tuple[str | None, str]:
    """The KV type that engines get, and the label, on a device with so much memory free."""
    monkeypatch.setattr(in_use, "read_memory", lambda _root: Memory(free_bytes, free_bytes, 0))
    config = read_config(["--home", str(model.parent), "--model", str(model), *flags])
    choices, unknown = calibrated(config, detect())
    assert not unknown
    started = for_engines(choices.values())[model]
    assert (started.threads, started.slots) == (2, 4)
    return started.kv_type, str(choices["tiny-1m"])


def test_engines_get_q8_0_where_f16_is_too_large_now(
    monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    kv_type, label = in_use_with(monkeypatch, model, 16 * 1024 * MIB)
    assert kv_type == "f16"
    assert "KV in f16: it fits" in label
    kv_type, label = in_use_with(monkeypatch, model, 1024)
    assert kv_type == "q8_0"
    assert "KV in q8_0: f16 leaves 0 tokens" in label


def test_owners_word_wins(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    kv_type, label = in_use_with(monkeypatch, model, 1024, "--kv-type", "f16")
    assert (kv_type, label.rpartition(", ")[2]) == ("f16", "KV in f16: as its owner says")


def test_file_that_cannot_be_read_gets_the_engines_default(tmp_path: Path) -> None:
    file = tmp_path / "Bad-1M.Q4_0.gguf"
    file.write_bytes(b"no model at all")
    choice = in_use.with_kv(Choice(file, None, 4, SLOWER), KvWish())
    assert for_engines([choice]) == {file: Calibrated(None, 4, None)}
