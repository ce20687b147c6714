"""llama.cpp's per-sequence state, taken apart into blocks and put together again.

The layout is llama.cpp's own (`llama_kv_cache::state_write`) for a context with
one stream a sequence and V not transposed, little endian:

    u32 magic, i32 sequence id
    for each cache (one; two in a sliding-window model):
        u32 n_stream
        for each stream: u32 cell count and, where it is not 0,
            for each cell: i32 position, u32 1, i32 sequence id
            u32 v_trans (0), u32 n_layer
            for each layer: i32 type, u64 row bytes, K rows      (a row a cell)
            for each layer: i32 type, u64 row bytes, V rows

A block is its 128 rows of each tensor, tensor after tensor; it depends neither
on the sequence id nor on the number of streams. llama.cpp trusts what it is
given, so anything unexpected is refused here, by name.

A window's cache keeps only the newest tokens, so a sliding-window model's block
has to be copied right after it was prefilled; restoring writes the window's rows
of every block, which needs a context with `swa_full`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agent.kv.layout import (
    TENSOR_HEADER_BYTES,
    CacheShape,
    Geometry,
    LayoutFault,
    StateLayoutError,
    TensorRows,
)
from shoal.blocks import BLOCK_TOKENS

Bytes = npt.NDArray[np.uint8]
Block = Bytes  # one dimension, Geometry.block_bytes long

MAX_STREAMS = 256  # llama.cpp's LLAMA_MAX_SEQ
MAX_LAYERS = 1024
MAX_CACHES = 2
_HEADER = struct.Struct("<Ii")
_U32 = struct.Struct("<I")
_DATA_HEADER = struct.Struct("<II")
_TENSOR = struct.Struct("<iQ")
_CELL = np.dtype([("position", "<i4"), ("num_seq_ids", "<u4"), ("seq_id", "<i4")])


@dataclass(frozen=True, slots=True)
class CachePart:
    """One cache's rows in a blob, from its first tensor's header to its last tensor's end."""

    shape: CacheShape
    first_position: int
    num_tokens: int
    data: Bytes


@dataclass(frozen=True, slots=True)
class SequenceState:
    """A parsed blob; its parts are views of the caller's buffer and must not outlive it."""

    geometry: Geometry
    n_stream: int
    num_tokens: int
    parts: tuple[CachePart, ...]

    @property
    def num_blocks(self) -> int:
        """Full blocks in the state."""
        return self.num_tokens // BLOCK_TOKENS

    def has_block(self, index: int) -> bool:
        """Whether every cache still holds all rows of this block."""
        first = max(part.first_position for part in self.parts)
        return first <= index * BLOCK_TOKENS and 0 <= index < self.num_blocks

    def copy_block(self, index: int) -> Block:
        """Block `index` copied out of the blob; raises IndexError when it is not all there."""
        if not self.has_block(index):
            raise IndexError(f"block {index} of {self.num_blocks} is not in the state")
        block = np.empty(self.geometry.block_bytes, dtype=np.uint8)
        rest = block
        for part in self.parts:
            first_row = index * BLOCK_TOKENS - part.first_position
            for rows in _windows(part.shape, part.data, part.num_tokens, first_row):
                rest[: rows.size].reshape(rows.shape)[:] = rows
                rest = rest[rows.size :]
        return block


def parse_state(
    blob: memoryview | bytes | Bytes, seq_id: int, expected: Geometry | None = None
) -> SequenceState:
    """Parse the blob of sequence `seq_id`; copies nothing.

    With `expected` the geometry must be that one. Raises StateLayoutError.
    """
    reader = _Reader(np.frombuffer(blob, dtype=np.uint8), seq_id)
    magic, blob_seq_id = reader.unpack(_HEADER)
    if blob_seq_id != seq_id:
        raise StateLayoutError(
            LayoutFault.WRONG_SEQUENCE, f"blob of sequence {blob_seq_id}, wanted {seq_id}"
        )
    n_stream, first = reader.read_cache()
    parts = [first]
    while reader.num_left and len(parts) < MAX_CACHES:
        streams, part = reader.read_cache()
        if streams != n_stream:
            raise StateLayoutError(LayoutFault.WRONG_STREAMS, "caches differ in streams")
        parts.append(part)
    if reader.num_left:
        raise StateLayoutError(
            LayoutFault.TRAILING_BYTES, f"{reader.num_left} bytes behind the last cache"
        )
    ends = {part.first_position + part.num_tokens for part in parts}
    if first.first_position != 0 or ends != {first.num_tokens}:
        raise StateLayoutError(LayoutFault.CELLS, "the caches hold other positions")
    geometry = Geometry(magic, tuple(part.shape for part in parts))
    if expected is not None and geometry != expected:
        raise StateLayoutError(LayoutFault.GEOMETRY, "not the loaded model's geometry")
    return SequenceState(geometry, n_stream, first.num_tokens, tuple(parts))


def compose_state(geometry: Geometry, n_stream: int, seq_id: int, blocks: Sequence[Block]) -> Bytes:
    """One blob that restores `blocks`, the first ones of a sequence, into `seq_id`.

    Raises StateLayoutError when a block has another size, and ValueError without
    blocks or for a sequence the context does not have.
    """
    if not blocks or not 0 <= seq_id < n_stream <= MAX_STREAMS:
        raise ValueError(f"{len(blocks)} blocks for sequence {seq_id} of {n_stream}")
    for block in blocks:
        if block.dtype != np.uint8 or block.shape != (geometry.block_bytes,):
            raise StateLayoutError(
                LayoutFault.BLOCK_SIZE, f"{block.nbytes} bytes, not {geometry.block_bytes}"
            )
    num_tokens = len(blocks) * BLOCK_TOKENS
    head_bytes = (2 + seq_id) * _U32.size + num_tokens * _CELL.itemsize + _DATA_HEADER.size
    tail_bytes = (n_stream - seq_id - 1) * _U32.size
    headers_bytes = sum(len(cache.tensors) * _TENSOR.size for cache in geometry.caches)
    blob = np.empty(
        _HEADER.size
        + (head_bytes + tail_bytes) * len(geometry.caches)
        + headers_bytes
        + geometry.block_bytes * len(blocks),
        dtype=np.uint8,
    )
    _HEADER.pack_into(blob.data, 0, geometry.magic, seq_id)
    rest = blob[_HEADER.size :]
    block_at = 0
    for cache in geometry.caches:
        _write_head(rest[:head_bytes], n_stream, seq_id, (num_tokens, cache.n_layer))
        rest = rest[head_bytes:]
        data_bytes = len(cache.tensors) * _TENSOR.size + cache.bytes_per_token * num_tokens
        _write_tensors(rest[:data_bytes], cache, [block[block_at:] for block in blocks])
        rest[data_bytes : data_bytes + tail_bytes] = 0
        rest = rest[data_bytes + tail_bytes :]
        block_at += cache.bytes_per_token * BLOCK_TOKENS
    return blob


def _write_head(out: Bytes, n_stream: int, seq_id: int, counts: tuple[int, int]) -> None:
    num_tokens, n_layer = counts
    cells_at = (2 + seq_id) * _U32.size
    out[:cells_at] = 0
    _U32.pack_into(out.data, 0, n_stream)
    _U32.pack_into(out.data, cells_at - _U32.size, num_tokens)
    cells = out[cells_at : -_DATA_HEADER.size].view(_CELL)
    cells["position"] = np.arange(num_tokens, dtype=np.int32)
    cells["num_seq_ids"] = 1
    cells["seq_id"] = seq_id
    _DATA_HEADER.pack_into(out.data, len(out) - _DATA_HEADER.size, 0, n_layer)


def _write_tensors(out: Bytes, cache: CacheShape, blocks: Sequence[Bytes]) -> None:
    num_tokens = len(blocks) * BLOCK_TOKENS
    offset = 0
    for tensor in cache.tensors:
        _TENSOR.pack_into(out.data, offset, tensor.type_id, tensor.row_bytes)
        offset += _TENSOR.size + tensor.row_bytes * num_tokens
    for index, block in enumerate(blocks):
        at = 0
        for rows in _windows(cache, out, num_tokens, index * BLOCK_TOKENS):
            rows[:] = block[at : at + rows.size].reshape(rows.shape)
            at += rows.size


def _windows(cache: CacheShape, data: Bytes, num_tokens: int, first_row: int) -> Iterator[Bytes]:
    """One block's bytes in `data`, a row a tensor, in order of the tensors.

    Tensors with rows of one size lie at one stride, so a model needs one or two
    windows, not one for each tensor.
    """
    at = 0
    for count, row_bytes in cache.runs():
        stride = TENSOR_HEADER_BYTES + row_bytes * num_tokens
        first = TENSOR_HEADER_BYTES + first_row * row_bytes
        tensors = data[at : at + count * stride].reshape(count, stride)
        yield tensors[:, first : first + row_bytes * BLOCK_TOKENS]
        at += count * stride


class _Reader:
    """Walks a blob; every length is checked before it is believed."""

    def __init__(self, buffer: Bytes, seq_id: int) -> None:
        self._buffer = buffer
        self._seq_id = seq_id
        self._at = 0

    @property
    def num_left(self) -> int:
        return len(self._buffer) - self._at

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack_from(self._take(layout.size).data)

    def read_cache(self) -> tuple[int, CachePart]:
        """(streams, the part) of the cache that starts here."""
        (n_stream,) = self.unpack(_U32)
        if not self._seq_id < n_stream <= MAX_STREAMS:
            raise StateLayoutError(
                LayoutFault.WRONG_STREAMS, f"{n_stream} streams for sequence {self._seq_id}"
            )
        self._skip_empty(self._seq_id)
        (num_tokens,) = self.unpack(_U32)
        if num_tokens == 0:
            raise StateLayoutError(LayoutFault.EMPTY, f"sequence {self._seq_id} holds no token")
        first_position = self._read_cells(num_tokens)
        v_trans, n_layer = self.unpack(_DATA_HEADER)
        if v_trans != 0:
            raise StateLayoutError(LayoutFault.VALUES_TRANSPOSED, "turn flash attention on")
        if not 0 < n_layer <= MAX_LAYERS:
            raise StateLayoutError(LayoutFault.LAYERS, f"{n_layer} layers")
        start = self._at
        num_after = (n_stream - self._seq_id - 1) * _U32.size
        tensors = self._read_tensors(num_tokens, n_layer, num_after)
        data = self._buffer[start : self._at]
        self._skip_empty(n_stream - self._seq_id - 1)
        part = CachePart(CacheShape(n_layer, tensors), first_position, num_tokens, data)
        return n_stream, part

    def _read_cells(self, num_tokens: int) -> int:
        """The first position; cells must follow on one another and be this sequence's alone."""
        cells = self._take(num_tokens * _CELL.itemsize).view(_CELL)
        first = int(cells["position"][0])
        if not (
            first >= 0
            and np.array_equal(cells["position"], np.arange(first, first + num_tokens))
            and bool((cells["num_seq_ids"] == 1).all())
            and bool((cells["seq_id"] == self._seq_id).all())
        ):
            raise StateLayoutError(
                LayoutFault.CELLS, "cells are not consecutive positions of this sequence alone"
            )
        return first

    def _read_tensors(
        self, num_tokens: int, n_layer: int, num_after: int
    ) -> tuple[TensorRows, ...]:
        """K tensors, then V tensors if there are any (latent-attention models have none)."""
        tensors: list[TensorRows] = []
        while len(tensors) < 2 * n_layer:
            if len(tensors) == n_layer and self.num_left == num_after:
                break
            type_id, row_bytes = self.unpack(_TENSOR)
            if row_bytes == 0 or row_bytes * num_tokens > self.num_left:
                raise StateLayoutError(
                    LayoutFault.ROW_SIZE, f"tensor {len(tensors)} claims rows of {row_bytes} bytes"
                )
            self._take(row_bytes * num_tokens)
            tensors.append(TensorRows(type_id, row_bytes))
        return tuple(tensors)

    def _skip_empty(self, num_streams: int) -> None:
        if num_streams and self._take(num_streams * _U32.size).any():
            raise StateLayoutError(LayoutFault.WRONG_STREAMS, "another stream has cells")

    def _take(self, num_bytes: int) -> Bytes:
        if num_bytes > self.num_left:
            raise StateLayoutError(LayoutFault.TRUNCATED, f"{len(self._buffer)} bytes in all")
        taken = self._buffer[self._at : self._at + num_bytes]
        self._at += num_bytes
        return taken
