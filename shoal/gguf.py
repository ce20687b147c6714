"""A GGUF file's header, read with bounds and without the engine's library.

Nothing in the file is believed before it is checked: lengths against what the file
holds and against limits, types against those that exist. Reading is plain buffered
file reading (no memory map, which a file that shrinks meanwhile turns into a SIGBUS).
Format: ggml/docs/gguf.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, NoReturn

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
# Real files have some dozen keys and some hundred tensors, and headers of up to 20 MB
# (a vocabulary of 260,000 tokens with its merges).
MAX_HEADER_BYTES = 128 * 1024 * 1024
MAX_KEYS = 10_000
MAX_TENSORS = 100_000
MAX_STRING_BYTES = 4 * 1024 * 1024
MAX_NAME_BYTES = 4_096
# Items of all arrays together; one of a million strings takes about half a second.
MAX_ITEMS = 4_000_000
# llama.cpp's own bounds (GGML_MAX_NAME, GGML_MAX_DIMS).
_MAX_TENSOR_NAME_BYTES = 63
_MAX_DIMS = 4
_MAX_ELEMENTS = 1 << 48
# Longer arrays of numbers are counted and not kept: token scores and types.
_KEPT_ITEMS = 4_096

# GGUF value types with a fixed size, by their number.
_FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# ggml's tensor types: (elements of a block, bytes of a block), as gguf's GGML_QUANT_SIZES.
TENSOR_TYPES: dict[int, tuple[int, int]] = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    9: (32, 40), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8),
    28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
    40: (64, 36), 41: (128, 18),
}  # fmt: skip


class GgufFault(StrEnum):
    """What kind of defect a file has."""

    NOT_GGUF = "not_gguf"
    VERSION = "version"
    TRUNCATED = "truncated"
    LIMIT = "limit"  # a length or count that no real file has
    TYPE = "type"
    VALUE = "value"
    DUPLICATE = "duplicate"
    TENSOR = "tensor"
    GEOMETRY = "geometry"
    TOKENIZER = "tokenizer"
    SPLIT = "split"


class GgufError(ValueError):
    """The file cannot be served; `fault` names the kind, the text says what and where."""

    def __init__(self, fault: GgufFault, message: str) -> None:
        super().__init__(f"{message} [{fault}]")
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Array:
    """An array whose items were not kept: `count` items of GGUF's type number `kind`."""

    kind: int
    count: int


Number = int | float | bool
Value = Number | str | list[Number] | Array


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor; `offset` counts from the start of the tensors' data."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int
    num_elements: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """All keys and tensors; `data_start` is where tensors' data begins in the file."""

    keys: dict[str, Value]
    tensors: tuple[TensorInfo, ...]
    data_start: int
    file_bytes: int


def read_header(path: Path) -> GgufHeader:
    """Read and check the header. Raises GgufError, OSError.

    Takes time and memory in proportion to the header, which is bounded: at most some
    seconds and MAX_HEADER_BYTES.
    """
    file_bytes = path.stat().st_size
    with path.open("rb", buffering=1 << 20) as file:
        return _Reader(file, file_bytes).header()


class _Reader:
    """One pass over a header; counts what it takes against the limits."""

    def __init__(self, file: BinaryIO, file_bytes: int) -> None:
        self._file = file
        self._file_bytes = file_bytes
        self._position = 0
        self._items_left = MAX_ITEMS

    def header(self) -> GgufHeader:
        """The whole header."""
        if self._file_bytes < 24 or self._take(4) != _MAGIC:
            _fail(GgufFault.NOT_GGUF, "it does not begin as a GGUF file")
        (version,) = self._unpack("<I")
        if version not in _VERSIONS:
            big_endian = int.from_bytes(int(version).to_bytes(4, "little"), "big") in _VERSIONS
            what = "it is for big-endian machines" if big_endian else f"version {version}"
            _fail(GgufFault.VERSION, f"{what}; versions 2 and 3, little-endian, are supported")
        num_tensors, num_keys = self._unpack("<QQ")
        # A tensor's entry takes at least 24 bytes, a key's at least 13.
        if num_tensors > min(MAX_TENSORS, self._file_bytes // 24):
            _fail(GgufFault.LIMIT, f"it claims {num_tensors} tensors, more than it can hold")
        if num_keys > min(MAX_KEYS, self._file_bytes // 13):
            _fail(GgufFault.LIMIT, f"it claims {num_keys} keys, more than it can hold")
        keys: dict[str, Value] = {}
        for _ in range(num_keys):
            name = self._text(MAX_NAME_BYTES, "a key's name")
            if name in keys:
                _fail(GgufFault.DUPLICATE, f"the key {_shown(name)} is there twice")
            (kind,) = self._unpack("<I")
            keys[name] = self._value(kind, name)
        tensors = self._tensors(num_tensors)
        alignment = keys.get("general.alignment", 32)
        if type(alignment) is not int or not 8 <= alignment <= 1 << 16 or alignment.bit_count() > 1:
            _fail(GgufFault.VALUE, "general.alignment is no power of two from 8 to 65536")
        data_start = -(-self._position // alignment) * alignment
        header = GgufHeader(keys, tensors, data_start, self._file_bytes)
        _check_places(header, alignment)
        return header

    def _tensors(self, count: int) -> tuple[TensorInfo, ...]:
        seen: set[str] = set()
        tensors: list[TensorInfo] = []
        for _ in range(count):
            tensor = self._tensor()
            if tensor.name in seen:
                _fail(GgufFault.DUPLICATE, f"the tensor {_shown(tensor.name)} is there twice")
            seen.add(tensor.name)
            tensors.append(tensor)
        return tuple(tensors)

    def _tensor(self) -> TensorInfo:
        name = self._text(_MAX_TENSOR_NAME_BYTES, "a tensor's name")
        (num_dims,) = self._unpack("<I")
        if not 1 <= num_dims <= _MAX_DIMS:
            _fail(GgufFault.TENSOR, f"the tensor {_shown(name)} has {num_dims} dimensions")
        shape = self._unpack(f"<{num_dims}Q")
        kind, offset = self._unpack("<IQ")
        num_elements = 1
        for size in shape:
            num_elements *= size
            if not 1 <= size < _MAX_ELEMENTS or num_elements >= _MAX_ELEMENTS:
                _fail(GgufFault.TENSOR, f"the tensor {_shown(name)} has the shape {shape}")
        if kind not in TENSOR_TYPES:
            _fail(GgufFault.TYPE, f"the tensor {_shown(name)} has the unknown type {kind}")
        block, block_bytes = TENSOR_TYPES[kind]
        if shape[0] % block:
            _fail(GgufFault.TENSOR, f"rows of {_shown(name)} are no multiple of {block}")
        size_bytes = num_elements // block * block_bytes
        return TensorInfo(name, shape, kind, offset, num_elements, size_bytes)

    def _value(self, kind: int, name: str) -> Value:
        if kind in _FIXED:
            return self._number(_FIXED[kind], name)
        if kind == _STRING:
            return self._text(MAX_STRING_BYTES, f"the text of {_shown(name)}")
        if kind != _ARRAY:
            _fail(GgufFault.TYPE, f"the key {_shown(name)} has the unknown type {kind}")
        element, count = self._unpack("<IQ")
        if element not in _FIXED and element != _STRING:
            what = "arrays" if element == _ARRAY else f"the unknown type {element}"
            _fail(GgufFault.TYPE, f"the array {_shown(name)} is of {what}")
        self._items_left -= min(count, MAX_ITEMS + 1)
        if self._items_left < 0:
            _fail(GgufFault.LIMIT, f"the array {_shown(name)} has {count} items")
        if element == _STRING:
            for _ in range(count):
                (length,) = self._unpack("<Q")
                self._check_length(length, MAX_STRING_BYTES, f"a text in {_shown(name)}")
                self._take(length)
            return Array(element, count)
        layout = _FIXED[element]
        data = self._take(count * struct.calcsize("<" + layout))
        if count > _KEPT_ITEMS:
            return Array(element, count)
        return list(struct.unpack(f"<{count}{layout}", data))

    def _number(self, layout: str, name: str) -> Number:
        if layout == "?":
            (byte,) = self._take(1)
            if byte > 1:
                _fail(GgufFault.VALUE, f"the key {_shown(name)} is neither true nor false")
            return byte == 1
        (number,) = struct.unpack("<" + layout, self._take(struct.calcsize("<" + layout)))
        return number  # type: ignore[no-any-return]  # what the layout says: int or float

    def _text(self, limit: int, what: str) -> str:
        (length,) = self._unpack("<Q")
        self._check_length(length, limit, what)
        return self._take(length).decode(errors="replace")

    def _check_length(self, length: int, limit: int, what: str) -> None:
        if length > limit:
            _fail(GgufFault.LIMIT, f"{what} is a string of {length} bytes")

    def _unpack(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))

    def _take(self, num_bytes: int) -> bytes:
        # Before reading: a length that the file cannot hold asks for no memory.
        end = self._position + num_bytes
        if end > self._file_bytes:
            _fail(GgufFault.TRUNCATED, "the file ends within its header")
        if end > MAX_HEADER_BYTES:
            _fail(GgufFault.LIMIT, f"the header is longer than {MAX_HEADER_BYTES} bytes")
        data = self._file.read(num_bytes)
        if len(data) != num_bytes:
            _fail(GgufFault.TRUNCATED, "the file ends within its header")
        self._position = end
        return data


def _check_places(header: GgufHeader, alignment: int) -> None:
    """Every tensor lies within the file, where it may, and over no other."""
    end = 0
    for tensor in sorted(header.tensors, key=lambda each: each.offset):
        if tensor.offset % alignment:
            _fail(GgufFault.TENSOR, f"the tensor {_shown(tensor.name)} is not aligned")
        if header.data_start + tensor.offset + tensor.size_bytes > header.file_bytes:
            _fail(GgufFault.TRUNCATED, f"the file ends before {_shown(tensor.name)} does")
        if tensor.offset < end:
            _fail(GgufFault.TENSOR, f"the tensor {_shown(tensor.name)} lies over another")
        end = tensor.offset + tensor.size_bytes


def _shown(text: str) -> str:
    """A name out of the file, for a message: short, printable, on one line."""
    return repr(text[:80])


def _fail(fault: GgufFault, message: str) -> NoReturn:
    raise GgufError(fault, message)
