"""Catalogue names, file checks, speed meter."""

from __future__ import annotations

import struct

import pytest

from agent.engine.meter import SpeedMeter
from agent.llama.gguf_check import check_gguf
from shoal.model_names import catalogue_name, quantisation


@pytest.mark.parametrize(
    ("file", "name", "quantised"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct", "Q4_1"),
        ("/models/Llama-3.2-1B-Instruct-Q4_K_M.gguf", "llama-3.2-1b-instruct", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q8_0.gguf", "qwen2.5-0.5b-instruct", "Q8_0"),
        ("Gemma-2-2B-IQ3_XXS.gguf", "gemma-2-2b", "IQ3_XXS"),
        ("Big-UD-Q4_K_XL-00001-of-00003.gguf", "big", "UD-Q4_K_XL"),
        ("phi-3-mini.F16.GGUF", "phi-3-mini", "F16"),
        ("smol-q4_0.gguf", "smol", "Q4_0"),
        ("odd name (1).gguf", "odd-name-1", ""),
        (".gguf", "model", ""),
    ],
)
def test_names_come_from_the_file(file, name, quantised):
    assert catalogue_name(file) == name
    assert quantisation(file) == quantised


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not begin as a GGUF file"),
        (b"PK\x03\x04" + bytes(40), "not begin as a GGUF file"),
        (struct.pack("<4sIQQ", b"GGUF", 99, 1, 1), "version 99"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1 << 60, 1), "more than it can hold"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 0) + bytes(100), "no tensors"),
    ],
)
def test_broken_files_are_named_before_llama_cpp_reads_them(tmp_path, content, problem):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert problem in check_gguf(path)


def test_a_missing_file_is_named(tmp_path):
    assert "cannot be read" in check_gguf(tmp_path / "none.gguf")


def test_the_meter_forgets_what_is_older_than_its_window():
    meter = SpeedMeter(window_s=5.0)
    meter.add(100, 0.0, 1.0)
    assert meter.rate(1.0) == pytest.approx(100)
    meter.add(10, 9.0, 10.0)
    assert meter.rate(10.0) == pytest.approx(10)
    assert meter.rate(99.0) == 0.0
