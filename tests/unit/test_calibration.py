from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from agent.calibration import measuring
from agent.calibration.__main__ import main
from agent.calibration.choosing import (
    Candidate,
    Choice,
    Outcome,
    best,
    choice_of,
    slots_for,
    thread_counts,
)
from agent.calibration.idle import IdleTerms, Uncalibrated, calibrate_when_idle
from agent.calibration.in_use import calibrated
from agent.calibration.kv_types import KvTried, choose_kv_type
from agent.calibration.measuring import LIMIT_S, calibrate
from agent.calibration.store import FILE, CalibrationStore, key_of, variants
from agent.calibration.trial import try_candidate
from agent.hardware.memory import Memory
from agent.hardware.report import detect
from agent.session.config import read_config

# As it was kept before KV types were compared.
ROW_WITHOUT_KV = '{"tiny-1m": {"key": "k", "file": "/", "threads": null, "slots": 4}}'


def outcome(name: str, seconds: float, size: int = 1, *, invariant: bool = True) -> Outcome:
    """One that takes `seconds` for a usual request, half of it each for prefill and decode."""
    rates = (1024 / seconds, (256 / seconds,))
    return Outcome(Candidate(Path(name)), "", size, *rates, invariant=invariant)


def test_fastest_that_serves_is_best() -> None:
    slow, fast = outcome("slow", 2.0), outcome("fast", 1.0)
    crashed = Outcome(Candidate(Path("bad")), "killed by SIGSEGV")
    assert best([slow, crashed, fast]) is fast
    assert best([crashed]) is None


def test_more_bits_win_among_nearly_equal_ones() -> None:
    small, large = outcome("q4", 1.0, 90), outcome("q8", 1.05, 145)
    assert best([small, large]) is large
    assert best([small, outcome("q8", 1.2, 145)]) is small


def test_what_depends_on_the_batch_is_chosen_only_for_want_of_better() -> None:
    loose, strict = outcome("loose", 1.0, invariant=False), outcome("strict", 3.0)
    assert best([loose, strict]) is strict
    assert best([loose]) is loose


def test_slots_are_the_fewest_that_are_nearly_enough() -> None:
    assert slots_for((50, 90, 150, 151)) == 4
    assert slots_for((50, 90, 150, 190)) == 8
    assert slots_for((50, 20)) == 4  # a noisy measurement does not make people wait


async def test_both_kv_types_of_the_best_are_tried_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "Tiny-1M.Q4_0.gguf"
    file.write_bytes(b"weights")

    async def tried(candidate: Candidate, _limit_s: float) -> Outcome:
        seconds = {"f16": 2.0, "q8_0": 3.0}[candidate.kv_type]
        measured = outcome(file.name, seconds)
        return dataclasses.replace(measured, candidate=candidate, any_cut=True)

    monkeypatch.setattr(measuring, "try_candidate", tried)
    told: list[Outcome] = []
    choice = await calibrate([file], 60.0, told.append)
    assert choice is not None
    assert choice.tried == KvTried(2.0, 3.0, invariant=True)
    assert [each.candidate.kv_type for each in told].count("q8_0") == 1
    assert str(told[-1].candidate).endswith("KV in q8_0")


async def test_a_disturbed_measurement_of_f16_does_not_bring_q8_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "Tiny-1M.Q4_0.gguf"
    file.write_bytes(b"weights")
    of_f16 = [20.0]

    async def tried(candidate: Candidate, _limit_s: float) -> Outcome:
        seconds = 3.0 if candidate.kv_type == "q8_0" else of_f16.pop() if of_f16 else 2.0
        return dataclasses.replace(outcome(file.name, seconds), candidate=candidate)

    monkeypatch.setattr(measuring, "try_candidate", tried)
    monkeypatch.setattr(measuring, "thread_counts", lambda *_: ())
    choice = await calibrate([file], 60.0, lambda _: None)
    assert choice is not None
    assert choice.tried == KvTried(2.0, 3.0, invariant=True, confirmed=True)


@pytest.mark.parametrize("in_time", [True, False])
async def test_q8_0_is_not_faster_until_f16_was_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_time: bool
) -> None:
    file = tmp_path / "Tiny-1M.Q4_0.gguf"
    file.write_bytes(b"weights")
    tries: list[str] = []

    async def tried(candidate: Candidate, _limit_s: float) -> Outcome:
        tries.append(candidate.kv_type)
        if len(tries) > 2 and not in_time:
            return Outcome(candidate, "not ready within 0 s")
        seconds = 1.0 if candidate.kv_type == "q8_0" else 20.0
        return dataclasses.replace(outcome(file.name, seconds), candidate=candidate)

    monkeypatch.setattr(measuring, "try_candidate", tried)
    monkeypatch.setattr(measuring, "thread_counts", lambda *_: ())
    choice = await calibrate([file], 60.0, lambda _: None)
    assert tries == ["f16", "q8_0", "f16"]
    assert choice is not None
    assert choose_kv_type(choice.tried, "").name == ("q8_0" if in_time else "f16")


def test_q8_0_must_depend_on_no_more_than_f16_does() -> None:
    strict = dataclasses.replace(outcome("f16", 1.0), any_cut=True)
    loose = outcome("f16", 1.0)
    assert not choice_of(strict, loose).tried.invariant
    assert choice_of(loose, loose).tried.invariant
    assert choice_of(loose, strict).tried.invariant
    assert not choice_of(loose, outcome("q8", 1.0, invariant=False)).tried.invariant
    crashed = Outcome(Candidate(Path("q8")), "killed by SIGSEGV")
    assert choice_of(strict, crashed).tried.failure == "killed by SIGSEGV"


@pytest.mark.parametrize(
    ("cpus", "cores", "counts"), [(8, 4, (4,)), (2, 2, (1,)), (12, 8, (8, 6)), (1, 1, ())]
)
def test_thread_counts(cpus: int, cores: int, counts: tuple[int, ...]) -> None:
    assert thread_counts(cpus, cores) == counts


def test_choice_is_kept_until_a_file_changes(tmp_path: Path) -> None:
    device, store = detect(), CalibrationStore(tmp_path)
    file = tmp_path / "Tiny-1M.Q4_0.gguf"
    file.write_bytes(b"one")
    choice = Choice(file, None, 4, KvTried(1.5, 2.5, invariant=True))
    store.keep(
        "tiny-1m", key_of(device, [file]), choice, [Outcome(Candidate(file), "killed by SIGSEGV")]
    )
    assert store.find("tiny-1m", key_of(device, [file])) == choice
    assert store.find("other", key_of(device, [file])) is None
    file.write_bytes(b"another")
    assert store.find("tiny-1m", key_of(device, [file])) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"tiny-1m": {"key": "k", "slots": 1}}', ROW_WITHOUT_KV]
)
def test_damaged_file_is_no_calibration(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert CalibrationStore(tmp_path).find("tiny-1m", "k") is None


def test_a_name_means_all_variants_and_a_file_only_itself(tmp_path: Path) -> None:
    files = [tmp_path / f"Tiny-1M.{quantisation}.gguf" for quantisation in ("Q4_0", "Q8_0")]
    for file in (*files, tmp_path / "Other-1M.Q4_0.gguf"):
        file.write_bytes(b"")
    assert variants("tiny-1m", tmp_path) == files
    assert variants(str(files[1]), tmp_path) == [files[1]]


async def test_candidate_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    file = tmp_path / "Bad-1M.Q4_0.gguf"
    file.write_bytes(b"no model at all")
    told = await try_candidate(Candidate(file), 60.0)
    assert not told.serves
    assert file.name in told.failure


async def test_candidate_whose_weights_would_not_fit_beside_the_served_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "Large-1M.Q4_0.gguf"
    file.write_bytes(b"weights")
    monkeypatch.setattr(measuring, "read_memory", lambda _root: Memory(10**9, 10**6, 0))
    told: list[Outcome] = []
    assert await calibrate([file], 60.0, told.append) is None
    assert [each.failure for each in told] == ["not tried: 256 MiB of memory short"]


async def test_file_that_is_gone_ends_no_agent(tmp_path: Path) -> None:
    wanted = [Uncalibrated("gone-1m", "key", [tmp_path / "Gone-1M.Q4_0.gguf"])]
    async with asyncio.timeout(60):
        terms = IdleTerms(quiet_s=0.01, limit_s=60.0, busy_percent=100.0)
        await calibrate_when_idle(wanted, CalibrationStore(tmp_path), lambda: True, terms)


async def test_calibration_waits_for_quiet_and_gives_way_to_a_request(tmp_path: Path) -> None:
    file = tmp_path / "Bad-1M.Q4_0.gguf"
    file.write_bytes(b"no model at all")
    looks = iter([False, True, True, False])
    idle = True

    def is_idle() -> bool:
        return next(looks, idle)

    store = CalibrationStore(tmp_path)
    wanted = [Uncalibrated("bad-1m", "key", [file])]
    terms = IdleTerms(quiet_s=0.01, limit_s=60.0, busy_percent=100.0)
    async with asyncio.timeout(120):
        await calibrate_when_idle(wanted, store, is_idle, terms)
    assert next(looks, None) is None  # it was put off, and came back
    assert store.find("bad-1m", "key") is None


async def test_too_short_a_time_is_told_and_not_tried_again_until_there_is_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "Tiny-1M.Q4_0.gguf"
    file.write_bytes(b"weights")
    given = ["--home", str(tmp_path), "--model", str(file), "--limit-s", "0.001"]
    assert await asyncio.to_thread(main, given) == 1
    assert "0.001 s are too short" in (told := capsys.readouterr().err)
    assert "--limit-s" in told
    store, key = CalibrationStore(tmp_path), key_of(detect(), [file])
    assert "too short" in store.failed("tiny-1m", key, 0.001)
    assert not store.failed("tiny-1m", key, 30.0)
    assert not store.failed("tiny-1m", "another device's", 0.001)
    config = read_config(["--home", str(tmp_path), "--model", str(file)])
    assert len(calibrated(config, detect())[1]) == 1
    tried = [Outcome(Candidate(file), "not ready within 30 s", lacks="time")]
    store.keep_failure("tiny-1m", key, LIMIT_S, tried)
    assert calibrated(config, detect()) == ({}, [])


async def test_what_cannot_be_loaded_is_measured_once_and_not_at_each_start(
    tmp_path: Path,
) -> None:
    file = tmp_path / "Bad-1M.Q4_0.gguf"
    file.write_bytes(b"no model at all")
    config = read_config(["--home", str(tmp_path), "--model", str(file)])
    _, unknown = calibrated(config, detect())
    async with asyncio.timeout(120):
        terms = IdleTerms(quiet_s=0.01, limit_s=60.0, busy_percent=100.0)
        await calibrate_when_idle(unknown, CalibrationStore(tmp_path), lambda: True, terms)
    assert calibrated(config, detect()) == ({}, [])
    file.write_bytes(b"another that is none")
    assert len(calibrated(config, detect())[1]) == 1


def test_a_failure_replaces_no_calibration_and_want_of_memory_is_not_kept(tmp_path: Path) -> None:
    store, file = CalibrationStore(tmp_path), tmp_path / "Tiny-1M.Q4_0.gguf"
    file.write_bytes(b"weights")
    short = Outcome(Candidate(file), "not tried: 256 MiB of memory short", lacks="memory")
    store.keep_failure("tiny-1m", "k", 30.0, [short])
    assert not store.failed("tiny-1m", "k", 30.0)
    choice = Choice(file, None, 4, KvTried(1.5, 2.5, invariant=True))
    store.keep("tiny-1m", "k", choice, [])
    late = Outcome(Candidate(file), "not ready within 1 s", lacks="time")
    store.keep_failure("tiny-1m", "k", 1.0, [late])
    assert store.find("tiny-1m", "k") == choice
