"""llama.cpp's per-sequence state, taken apart into blocks and put together again.

The layout is llama.cpp's own (`llama_kv_cache::state_write`) for a context with
one stream a sequence and V not transposed, little endian:

    u32 magic, i32 sequence id, u32 n_stream
    for each stream: u32 cell count and, where it is not 0,
        for each cell: i32 position, u32 1, i32 sequence id
        u32 v_trans (0), u32 n_layer
        for each layer: i32 type, u64 row bytes, K rows      (a row a cell)
        for each layer: i32 type, u64 row bytes, V rows

A block is its 128 rows of each tensor, tensor after tensor; it depends neither
on the sequence id nor on the number of streams. llama.cpp trusts what it is
given, so anything unexpected is refused here, by name.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from shoal.blocks import BLOCK_TOKENS

Block = npt.NDArray[np.uint8]  # one dimension, Geometry.block_bytes long

MAX_STREAMS = 256  # llama.cpp's LLAMA_MAX_SEQ
MAX_LAYERS = 1024
_HEADER = struct.Struct("<IiI")
_U32 = struct.Struct("<I")
_DATA_HEADER = struct.Struct("<II")
_TENSOR = struct.Struct("<iQ")
_CELL = np.dtype([("position", "<i4"), ("num_seq_ids", "<u4"), ("seq_id", "<i4")])


class LayoutFault(StrEnum):
    """What is wrong with a state blob."""

    TRUNCATED = "truncated"
    TRAILING_BYTES = "trailing_bytes"
    WRONG_SEQUENCE = "wrong_sequence"
    WRONG_STREAMS = "wrong_streams"
    EMPTY = "empty"
    CELLS = "cells"
    VALUES_TRANSPOSED = "values_transposed"
    LAYERS = "layers"
    ROW_SIZE = "row_size"
    GEOMETRY = "geometry"
    BLOCK_SIZE = "block_size"


class StateLayoutError(Exception):
    """A state blob or a block that is not laid out as this module knows it."""

    def __init__(self, fault: LayoutFault, detail: str) -> None:
        super().__init__(f"{fault}: {detail}")
        self.fault = fault


@dataclass(frozen=True, slots=True)
class TensorRows:
    """One K or V tensor: its ggml type and the bytes of one token's row."""

    type_id: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape of one model's KV cache, as read from a blob of the loaded model."""

    magic: int
    n_layer: int
    tensors: tuple[TensorRows, ...]  # K of every layer, then V of every layer

    @property
    def bytes_per_token(self) -> int:
        """KV bytes of one token over all layers."""
        return sum(tensor.row_bytes for tensor in self.tensors)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.bytes_per_token * BLOCK_TOKENS

    def digest(self) -> bytes:
        """16 bytes that name the geometry; part of what a sealed block is bound to."""
        text = ",".join(f"{tensor.type_id}:{tensor.row_bytes}" for tensor in self.tensors)
        head = f"{self.magic}/{self.n_layer}/{BLOCK_TOKENS}/"
        return hashlib.blake2b((head + text).encode(), digest_size=16).digest()

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """(first tensor, number of tensors, row bytes) of neighbours with rows of one size."""
        first = 0
        for index in range(1, len(self.tensors) + 1):
            row_bytes = self.tensors[first].row_bytes
            if index == len(self.tensors) or self.tensors[index].row_bytes != row_bytes:
                yield first, index - first, row_bytes
                first = index


@dataclass(frozen=True, slots=True)
class SequenceState:
    """A parsed blob; `data` is a view of the caller's buffer and must not outlive it."""

    geometry: Geometry
    num_tokens: int
    n_stream: int
    data: npt.NDArray[np.uint8]  # from the first tensor's header to the last tensor's end

    @property
    def num_blocks(self) -> int:
        """Full blocks in the state."""
        return self.num_tokens // BLOCK_TOKENS

    def copy_block(self, index: int) -> Block:
        """Block `index` copied out of the blob; raises IndexError past the last full block."""
        if not 0 <= index < self.num_blocks:
            raise IndexError(f"block {index} of {self.num_blocks}")
        block = np.empty(self.geometry.block_bytes, dtype=np.uint8)
        for rows, place in _windows(self.geometry, self.data, self.num_tokens, index):
            block[place].reshape(rows.shape)[:] = rows
        return block


def parse_state(
    blob: memoryview | bytes | npt.NDArray[np.uint8],
    seq_id: int,
    expected: Geometry | None = None,
) -> SequenceState:
    """Parse the blob of sequence `seq_id`; copies nothing.

    With `expected` the geometry must be that one. Raises StateLayoutError.
    """
    buffer = np.frombuffer(blob, dtype=np.uint8)
    magic, blob_seq_id, n_stream = _read(_HEADER, buffer, 0)
    if blob_seq_id != seq_id:
        raise StateLayoutError(
            LayoutFault.WRONG_SEQUENCE, f"blob of sequence {blob_seq_id}, wanted {seq_id}"
        )
    if not seq_id < n_stream <= MAX_STREAMS:
        raise StateLayoutError(
            LayoutFault.WRONG_STREAMS, f"{n_stream} streams for sequence {seq_id}"
        )
    offset = _skip_empty(buffer, _HEADER.size, seq_id)
    (num_tokens,) = _read(_U32, buffer, offset)
    offset += _U32.size
    if num_tokens == 0:
        raise StateLayoutError(LayoutFault.EMPTY, f"sequence {seq_id} holds no token")
    _check_cells(buffer, offset, num_tokens, seq_id)
    offset += num_tokens * _CELL.itemsize
    v_trans, n_layer = _read(_DATA_HEADER, buffer, offset)
    offset += _DATA_HEADER.size
    if v_trans != 0:
        raise StateLayoutError(LayoutFault.VALUES_TRANSPOSED, "turn flash attention on")
    if not 0 < n_layer <= MAX_LAYERS:
        raise StateLayoutError(LayoutFault.LAYERS, f"{n_layer} layers")
    trailer_bytes = (n_stream - seq_id - 1) * _U32.size
    tensors, end = _read_tensors(buffer, offset, num_tokens, (n_layer, trailer_bytes))
    _skip_empty(buffer, end, n_stream - seq_id - 1)
    if end + trailer_bytes != len(buffer):
        raise StateLayoutError(
            LayoutFault.TRAILING_BYTES,
            f"{len(buffer) - end - trailer_bytes} bytes follow the cache, as with a second "
            "(sliding-window or recurrent) cache",
        )
    geometry = Geometry(magic, n_layer, tensors)
    if expected is not None and geometry != expected:
        raise StateLayoutError(LayoutFault.GEOMETRY, "not the loaded model's geometry")
    return SequenceState(geometry, num_tokens, n_stream, buffer[offset:end])


def compose_state(
    geometry: Geometry, n_stream: int, seq_id: int, blocks: Sequence[Block]
) -> npt.NDArray[np.uint8]:
    """One blob that restores `blocks`, the first ones of a sequence, into `seq_id`.

    Raises StateLayoutError when a block has another size, and ValueError without
    blocks or for a sequence the context does not have.
    """
    if not blocks or not 0 <= seq_id < n_stream <= MAX_STREAMS:
        raise ValueError(f"{len(blocks)} blocks for sequence {seq_id} of {n_stream}")
    num_tokens = len(blocks) * BLOCK_TOKENS
    cells_at = _HEADER.size + (seq_id + 1) * _U32.size
    tensors_at = cells_at + num_tokens * _CELL.itemsize + _DATA_HEADER.size
    tensors_bytes = len(geometry.tensors) * _TENSOR.size + geometry.block_bytes * len(blocks)
    end = tensors_at + tensors_bytes
    blob = np.empty(end + (n_stream - seq_id - 1) * _U32.size, dtype=np.uint8)
    blob[:cells_at] = 0
    blob[end:] = 0
    _HEADER.pack_into(blob.data, 0, geometry.magic, seq_id, n_stream)
    _U32.pack_into(blob.data, cells_at - _U32.size, num_tokens)
    cells = blob[cells_at : cells_at + num_tokens * _CELL.itemsize].view(_CELL)
    cells["position"] = np.arange(num_tokens, dtype=np.int32)
    cells["num_seq_ids"] = 1
    cells["seq_id"] = seq_id
    _DATA_HEADER.pack_into(blob.data, tensors_at - _DATA_HEADER.size, 0, geometry.n_layer)
    offset = tensors_at
    for tensor in geometry.tensors:
        _TENSOR.pack_into(blob.data, offset, tensor.type_id, tensor.row_bytes)
        offset += _TENSOR.size + tensor.row_bytes * num_tokens
    data = blob[tensors_at:end]
    for index, block in enumerate(blocks):
        if block.dtype != np.uint8 or block.shape != (geometry.block_bytes,):
            raise StateLayoutError(
                LayoutFault.BLOCK_SIZE, f"{block.nbytes} bytes, not {geometry.block_bytes}"
            )
        for rows, place in _windows(geometry, data, num_tokens, index):
            rows[:] = block[place].reshape(rows.shape)
    return blob


def _windows(
    geometry: Geometry, data: npt.NDArray[np.uint8], num_tokens: int, index: int
) -> Iterator[tuple[npt.NDArray[np.uint8], slice]]:
    """Block `index`'s bytes in `data` (one row a tensor), each with its place in the block.

    Tensors with rows of one size lie at one stride, so a model needs one or two
    windows, not one for each tensor.
    """
    data_at = place_at = 0
    for _, count, row_bytes in geometry.runs():
        stride = _TENSOR.size + row_bytes * num_tokens
        span = row_bytes * BLOCK_TOKENS
        tensors = data[data_at : data_at + count * stride].reshape(count, stride)
        first = _TENSOR.size + index * span
        yield tensors[:, first : first + span], slice(place_at, place_at + count * span)
        data_at += count * stride
        place_at += count * span


def _read(layout: struct.Struct, buffer: npt.NDArray[np.uint8], offset: int) -> tuple[int, ...]:
    if offset + layout.size > len(buffer):
        raise StateLayoutError(LayoutFault.TRUNCATED, f"{len(buffer)} bytes")
    return layout.unpack_from(buffer.data, offset)


def _skip_empty(buffer: npt.NDArray[np.uint8], offset: int, num_streams: int) -> int:
    for _ in range(num_streams):
        (count,) = _read(_U32, buffer, offset)
        if count != 0:
            raise StateLayoutError(LayoutFault.WRONG_STREAMS, "another stream has cells")
        offset += _U32.size
    return offset


def _check_cells(buffer: npt.NDArray[np.uint8], offset: int, num_tokens: int, seq_id: int) -> None:
    """Every cell in order of position from 0, of this sequence alone."""
    end = offset + num_tokens * _CELL.itemsize
    if end > len(buffer):
        raise StateLayoutError(LayoutFault.TRUNCATED, f"{num_tokens} cells in {len(buffer)} bytes")
    cells = buffer[offset:end].view(_CELL)
    if not (
        np.array_equal(cells["position"], np.arange(num_tokens, dtype=np.int64))
        and bool((cells["num_seq_ids"] == 1).all())
        and bool((cells["seq_id"] == seq_id).all())
    ):
        raise StateLayoutError(
            LayoutFault.CELLS, "cells are not positions 0, 1, 2, ... of this sequence alone"
        )


def _read_tensors(
    buffer: npt.NDArray[np.uint8], offset: int, num_tokens: int, shape: tuple[int, int]
) -> tuple[tuple[TensorRows, ...], int]:
    """K tensors, then V tensors if there are any (latent-attention models have none)."""
    n_layer, trailer_bytes = shape
    tensors: list[TensorRows] = []
    while len(tensors) < 2 * n_layer:
        if len(tensors) == n_layer and offset + trailer_bytes == len(buffer):
            break
        type_id, row_bytes = _read(_TENSOR, buffer, offset)
        offset += _TENSOR.size
        if row_bytes == 0 or offset + row_bytes * num_tokens > len(buffer):
            raise StateLayoutError(
                LayoutFault.ROW_SIZE, f"tensor {len(tensors)} claims rows of {row_bytes} bytes"
            )
        tensors.append(TensorRows(type_id, row_bytes))
        offset += row_bytes * num_tokens
    return tuple(tensors), offset
