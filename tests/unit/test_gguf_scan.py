"""What the bounded scan believes of a GGUF file, and what it names as a defect."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import pytest

from shoal.gguf import TENSOR_TYPES, GgufError, GgufFault, GgufHeader, TensorInfo, read_header
from shoal.gguf_facts import facts_of, scan
from tests.harness.tiny_llama_model import write_tiny_llama_model

U32, U64, STRING, ARRAY = 4, 10, 8, 9
# The keys of the least model that is described; `keys` below replaces some.
LLAMA = {
    "general.architecture": "llama", "llama.context_length": 1024, "llama.embedding_length": 512,
    "llama.block_count": 2, "llama.attention.head_count": 8,
}  # fmt: skip


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def file_of(tmp_path: Path, *keys: bytes, tensors: bytes = b"", num_tensors: int = 0) -> Path:
    path = tmp_path / "made.gguf"
    head = struct.pack("<4sIQQ", b"GGUF", 3, num_tensors, len(keys))
    path.write_bytes(head + b"".join(keys) + tensors + bytes(4096))
    return path


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def fault(path: Path) -> GgufFault:
    with pytest.raises(GgufError) as refused:
        read_header(path)
    return refused.value.fault


def described(**replaced: object) -> GgufHeader:
    keys = dict(LLAMA)
    for name, value in replaced.items():
        if value is None:
            del keys[name]
        else:
            keys[name] = value
    return GgufHeader(keys, (TensorInfo("t", (8,), 0, 0, 8, 32),), 0, 100)


def test_a_file_that_gguf_wrote_is_read(tmp_path: Path) -> None:
    facts = scan(write_tiny_llama_model(tmp_path / "Tiny-Llama.F32.gguf"))
    assert (facts.architecture, facts.quantisation, facts.vocab_tokens) == ("llama", "F32", 292)
    assert (facts.num_layers, facts.num_heads, facts.num_kv_heads) == (2, 2, 1)
    assert facts.kv_shape("f16").bytes_per_token == 2 * 1 * (16 + 16) * 2
    assert facts.has_chat_template


def test_the_table_of_tensor_types_is_ggufs() -> None:
    theirs = {int(kind): size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert {kind: theirs[kind] for kind in TENSOR_TYPES} == TENSOR_TYPES


def test_every_cut_of_a_file_is_a_named_defect(tmp_path: Path) -> None:
    whole = write_tiny_llama_model(tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [*range(0, 600, 7), *range(600, len(whole), 4001)]:
        cut.write_bytes(whole[:length])
        assert fault(cut) in {GgufFault.NOT_GGUF, GgufFault.TRUNCATED, GgufFault.LIMIT}, length


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (text("k") + struct.pack("<IQ", STRING, (1 << 63) - 1), GgufFault.LIMIT),
        (text("k") + struct.pack("<IQ", STRING, 1 << 20), GgufFault.TRUNCATED),
        (struct.pack("<Q", 1 << 60), GgufFault.LIMIT),
        (text("k") + struct.pack("<I", 99), GgufFault.TYPE),
        (text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1), GgufFault.TYPE),
        (text("k") + struct.pack("<IIQ", ARRAY, 99, 1), GgufFault.TYPE),
        (text("k") + struct.pack("<IIQ", ARRAY, U32, 1 << 62), GgufFault.LIMIT),
        (text("k") + struct.pack("<IIQ", ARRAY, U64, 3_000_000), GgufFault.TRUNCATED),
        (text("k") + struct.pack("<IB", 7, 2), GgufFault.VALUE),
        (text("general.alignment") + struct.pack("<II", U32, 24), GgufFault.VALUE),
        (text("general.alignment") + struct.pack("<II", U32, 0), GgufFault.VALUE),
    ],
)
def test_keys_that_no_real_file_has_are_named(
    tmp_path: Path, key: bytes, expected: GgufFault
) -> None:
    assert fault(file_of(tmp_path, key)) is expected


def test_a_key_that_is_there_twice_is_named(tmp_path: Path) -> None:
    key = text("k") + struct.pack("<II", U32, 1)
    assert fault(file_of(tmp_path, key, key)) is GgufFault.DUPLICATE


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ([tensor("t", (1, 1, 1, 1, 1))], GgufFault.TENSOR),
        ([tensor("t", (0,))], GgufFault.TENSOR),
        ([tensor("t", (1 << 32, 1 << 32))], GgufFault.TENSOR),
        ([tensor("t", (64,), kind=5)], GgufFault.TYPE),
        ([tensor("t", (33,), kind=2)], GgufFault.TENSOR),
        ([tensor("t", (8,), offset=4)], GgufFault.TENSOR),
        ([tensor("t", (1 << 20,))], GgufFault.TRUNCATED),
        ([tensor("t", (8,), offset=(1 << 64) - 32)], GgufFault.TRUNCATED),
        ([tensor("t" * 64, (8,))], GgufFault.LIMIT),
        ([tensor("t", (8,)), tensor("t", (8,), offset=32)], GgufFault.DUPLICATE),
        ([tensor("t", (16,)), tensor("u", (8,), offset=32)], GgufFault.TENSOR),
    ],
)
def test_tensors_that_cannot_be_are_named(
    tmp_path: Path, tensors: list[bytes], expected: GgufFault
) -> None:
    path = file_of(tmp_path, tensors=b"".join(tensors), num_tensors=len(tensors))
    assert fault(path) is expected


def test_a_big_endian_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    path.write_bytes(struct.pack(">4sIQQ", b"GGUF", 3, 1, 1) + bytes(100))
    with pytest.raises(GgufError, match="big-endian"):
        read_header(path)


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"general.architecture": None}, r"general\.architecture"),
        ({"llama.attention.head_count": None}, r"llama\.attention\.head_count"),
        ({"llama.block_count": 1 << 31}, "block_count is not from"),
        ({"llama.block_count": -1}, "block_count is not from"),
        ({"llama.context_length": 0}, "context_length"),
        ({"llama.embedding_length": True}, "embedding_length"),
        ({"split.count": 3}, "one of 3 parts"),
        ({"tokenizer.chat_template": 5}, "chat template"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "no list of texts"),
    ],
)
def test_facts_that_cannot_be_used_are_named(replaced: dict[str, object], message: str) -> None:
    with pytest.raises(GgufError, match=message):
        facts_of(described(**replaced))


def test_matrices_of_types_that_nothing_multiplies_are_named() -> None:
    header = GgufHeader(dict(LLAMA), (TensorInfo("t", (8, 8), 26, 0, 64, 256),), 0, 1000)
    with pytest.raises(GgufError, match="without kernels"):
        facts_of(header)


def test_heads_may_differ_from_layer_to_layer() -> None:
    header = described(
        **{"llama.attention.head_count": [8, 8], "llama.attention.head_count_kv": [2, 4]}
    )
    assert facts_of(header).kv_shape("f16").bytes_per_token == 2 * 3 * 128 * 2
