"""A GGUF file's keys, read without the engine library: what decides the size of its KV cache."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from agent.kv.budget import KvShape

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_KEYS = 100_000
_MAX_STRING_BYTES = 16 * 1024 * 1024
_MAX_ITEMS = 10_000_000
# GGUF value types with a fixed size (ggml/docs/gguf.md), by their number.
_FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

Value = int | float | bool | str | list[int | float | bool]


class HeaderError(ValueError):
    """The file is not a GGUF file, or its header lacks what is needed."""


def read_keys(path: Path) -> dict[str, Value]:
    """All keys but arrays of strings and of arrays. Raises HeaderError, OSError."""
    with path.open("rb") as file:
        magic = _read(file, len(_MAGIC))
        version, _, num_keys = _unpack(file, "<IQQ")
        if magic != _MAGIC or version not in _VERSIONS or num_keys > _MAX_KEYS:
            raise HeaderError(f"{path.name} is not a GGUF file of version 2 or 3")
        keys: dict[str, Value] = {}
        for _ in range(num_keys):
            name = _string(file)
            (kind,) = _unpack(file, "<I")
            value = _value(file, kind)
            if value is not None:
                keys[name] = value
        return keys


def kv_shape(keys: dict[str, Value], kv_type: str) -> tuple[KvShape, int]:
    """(KV geometry, trained context) of the model. Raises HeaderError."""
    architecture = keys.get("general.architecture")

    def number(name: str, default: int | None = None) -> int:
        value = keys.get(f"{architecture}.{name}", default)
        if isinstance(value, list):  # one value a layer
            value = -(-int(sum(value)) // max(1, len(value)))
        if not isinstance(value, int):
            raise HeaderError(f"the header does not say {architecture}.{name}")
        return value

    heads = number("attention.head_count")
    head_dim = number("embedding_length") // max(1, heads)
    shape = KvShape(
        num_layers=number("block_count"),
        num_kv_heads=number("attention.head_count_kv", heads),
        key_head_dim=number("attention.key_length", head_dim),
        value_head_dim=number("attention.value_length", head_dim),
        kv_type=kv_type,
    )
    return shape, number("context_length")


def _value(file: BinaryIO, kind: int) -> Value | None:
    if kind in _FIXED:
        (value,) = _unpack(file, "<" + _FIXED[kind])
        return value
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        raise HeaderError(f"unknown value type {kind}")
    element, count = _unpack(file, "<IQ")
    if count > _MAX_ITEMS:
        raise HeaderError(f"an array of {count} values")
    if element in _FIXED:
        return list(_unpack(file, f"<{count}{_FIXED[element]}"))
    for _ in range(count):
        _value(file, element)
    return None


def _string(file: BinaryIO) -> str:
    (length,) = _unpack(file, "<Q")
    if length > _MAX_STRING_BYTES:
        raise HeaderError(f"a string of {length} bytes")
    return _read(file, length).decode(errors="replace")


def _unpack(file: BinaryIO, layout: str) -> tuple[int, ...]:
    return struct.unpack(layout, _read(file, struct.calcsize(layout)))


def _read(file: BinaryIO, num_bytes: int) -> bytes:
    data = file.read(num_bytes)
    if len(data) != num_bytes:
        raise HeaderError("the file ends within its header")
    return data
