"""deploy/ is no package: its scripts are imported from their folder."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "deploy"))

import build_engine
import engine_flags
from engine_flags import Build, cpu_features, wanted_builds

AVX2 = "sse4_2 avx avx2 fma f16c bmi2"
AVX512 = f"{AVX2} avx512f avx512cd avx512bw avx512dq avx512vl"
SAPPHIRE_RAPIDS = f"{AVX512} avx512_vnni avx512vbmi avx512_bf16 amx_tile amx_int8 amx_bf16"


def builds(machine: str, features: str) -> tuple[Build, ...]:
    return wanted_builds(machine, frozenset(features.split()))


def test_amx_is_never_built_in() -> None:
    for build in builds("x86_64", SAPPHIRE_RAPIDS):
        assert "-DGGML_NATIVE=OFF" in build.cmake_args
        assert not any("AMX" in flag for flag in build.cmake_args)


def test_avx512_sets_are_named_one_by_one_and_baseline_follows() -> None:
    best, last = builds("x86_64", f"{AVX512} avx512_vnni")
    assert best.cmake_args == ("-DGGML_NATIVE=OFF", "-DGGML_AVX512=ON", "-DGGML_AVX512_VNNI=ON")
    assert last.cmake_args == ("-DGGML_NATIVE=OFF",)


def test_incomplete_avx512_is_left_out() -> None:
    (only,) = builds("x86_64", f"{AVX2} avx512f avx512_vnni")
    assert only.cmake_args == ("-DGGML_NATIVE=OFF",)


def test_old_x86_turns_off_what_it_lacks() -> None:
    (only,) = builds("x86_64", "sse4_2 avx")
    assert "-DGGML_AVX2=OFF" in only.cmake_args
    assert "-DGGML_AVX=OFF" not in only.cmake_args


def test_arm_features_choose_the_architecture() -> None:
    best, last = builds("aarch64", "fp asimd asimdhp asimddp")
    assert "-DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod+fp16" in best.cmake_args
    assert "-DGGML_CPU_ARM_ARCH=armv8-a" in last.cmake_args


def test_only_features_of_every_core_count() -> None:
    cpuinfo = "processor : 0\nFeatures\t: fp asimd asimddp\n\nprocessor : 1\nFeatures\t: fp asimd\n"
    assert cpu_features(cpuinfo) == {"fp", "asimd"}


def test_key_depends_on_flags_machine_and_abi() -> None:
    one, other = Build("a", ("-DX=1",)), Build("a", ("-DX=2",))
    keys = {
        one.key("x86_64", "p"),
        other.key("x86_64", "p"),
        one.key("arm", "p"),
        one.key("arm", "q"),
    }
    assert len(keys) == 4
    assert one.key("x86_64", "p") == Build("other name", ("-DX=1",)).key("x86_64", "p")


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Building and installing only recorded; the order of what is tried is under test."""
    done: list[str] = []
    monkeypatch.setattr(build_engine, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(build_engine, "wheel_of", lambda build, _caches: Path(build.name))
    monkeypatch.setattr(build_engine, "install", lambda wheel: done.append(wheel.name))
    return done


def crash_of(*names: str, steps: list[str]) -> Any:
    return lambda _model: "killed by SIGSEGV" if steps[-1] in names else None


def test_crashing_build_falls_back_to_the_next(
    steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_engine, "crash_of_proof", crash_of("avx512", steps=steps))
    build_engine.set_up(builds("x86_64", AVX512), force=False)
    assert steps == ["avx512", "baseline"]
    assert '"build": "baseline"' in build_engine.RECORD.read_text()


def test_no_working_build_names_the_remedy(
    steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_engine, "crash_of_proof", crash_of("baseline", steps=steps))
    with pytest.raises(build_engine.EngineBuildError, match="make engine CMAKE_ARGS"):
        build_engine.set_up(builds("x86_64", AVX2), force=False)
    assert not build_engine.RECORD.exists()


def test_nothing_is_built_when_there_is_nothing_to_prove_it_with(
    steps: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build_engine, "_MODEL_PACKAGE", "no_such_package")
    with pytest.raises(build_engine.EngineBuildError, match="pass a GGUF file with --model"):
        build_engine.set_up((Build("avx512", ()), Build("baseline", ())), force=False)
    with pytest.raises(build_engine.EngineBuildError, match="no such file"):
        build_engine.set_up((Build("a", ()),), force=False, model=str(tmp_path / "missing.gguf"))
    assert steps == []


def test_damaged_model_is_not_taken_for_a_broken_engine(
    steps: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = tmp_path / "damaged.gguf"
    model.touch()
    said = f"exit status 1: ValueError: Failed to load model from file: {model}"
    monkeypatch.setattr(build_engine, "crash_of_proof", lambda _model: said)
    builds = (Build("avx512", ("-DX=1",)), Build("baseline", ()))
    with pytest.raises(build_engine.EngineBuildError, match="says nothing of the engine"):
        build_engine.set_up(builds, force=False, model=str(model))
    assert steps == ["avx512"]


def test_proven_build_is_not_installed_again(
    steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_engine, "is_installed", lambda _key: True)
    build_engine.set_up(builds("x86_64", AVX2), force=False)
    assert steps == []


def test_wheel_of_another_cache_is_used_and_the_plan_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build_engine, "cache_dir", lambda: tmp_path / "own")
    build = Build("portable", ("-DGGML_NATIVE=OFF",))
    key = build.key(build_engine.platform.machine(), build_engine.abi())
    build_engine.print_plan((build,), (tmp_path / "other",))
    wheel = tmp_path / "other" / key / "engine.whl"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    build_engine.print_plan((build,), (tmp_path / "other",))
    assert capsys.readouterr().out.splitlines() == [f"{key} compile", f"{key} cached"]
    assert build_engine.wheel_of(build, (tmp_path / "other",)) == wheel


def test_makefile_and_flags_agree_on_the_remedy() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert "engine:" in makefile
    assert "CMAKE_ARGS" in makefile
    assert engine_flags.VERSION in build_engine.Build("x", ()).key("m", "a")
