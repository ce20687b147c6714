"""Reads a state blob front to back and believes nothing that it has not checked."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agent.kv.layout import CacheShape, LayoutFault, StateLayoutError, TensorRows

Bytes = npt.NDArray[np.uint8]

MAX_STREAMS = 256  # llama.cpp's LLAMA_MAX_SEQ
MAX_LAYERS = 1024
HEADER = struct.Struct("<Ii")
U32 = struct.Struct("<I")
DATA_HEADER = struct.Struct("<II")
TENSOR = struct.Struct("<iQ")
CELL = np.dtype([("position", "<i4"), ("num_seq_ids", "<u4"), ("seq_id", "<i4")])


@dataclass(frozen=True, slots=True)
class CachePart:
    """One cache's rows in a blob, from its first tensor's header to its last tensor's end."""

    shape: CacheShape
    first_position: int
    num_tokens: int
    data: Bytes


class StateReader:
    """Walks a blob; every length is checked before it is believed."""

    def __init__(self, buffer: Bytes, seq_id: int) -> None:
        self._buffer = buffer
        self._seq_id = seq_id
        self._at = 0

    @property
    def num_left(self) -> int:
        """Bytes not read yet."""
        return len(self._buffer) - self._at

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        """The next fields; raises StateLayoutError past the end."""
        return layout.unpack_from(self._take(layout.size).data)

    def read_cache(self) -> tuple[int, CachePart]:
        """(streams, the part) of the cache that starts here."""
        (n_stream,) = self.unpack(U32)
        if not self._seq_id < n_stream <= MAX_STREAMS:
            raise StateLayoutError(
                LayoutFault.WRONG_STREAMS, f"{n_stream} streams for sequence {self._seq_id}"
            )
        self._skip_empty(self._seq_id)
        (num_tokens,) = self.unpack(U32)
        if num_tokens == 0:
            raise StateLayoutError(LayoutFault.EMPTY, f"sequence {self._seq_id} holds no token")
        first_position = self._read_cells(num_tokens)
        v_trans, n_layer = self.unpack(DATA_HEADER)
        if v_trans != 0:
            raise StateLayoutError(LayoutFault.VALUES_TRANSPOSED, "turn flash attention on")
        if not 0 < n_layer <= MAX_LAYERS:
            raise StateLayoutError(LayoutFault.LAYERS, f"{n_layer} layers")
        start = self._at
        num_after = (n_stream - self._seq_id - 1) * U32.size
        tensors = self._read_tensors(num_tokens, n_layer, num_after)
        data = self._buffer[start : self._at]
        self._skip_empty(n_stream - self._seq_id - 1)
        part = CachePart(CacheShape(n_layer, tensors), first_position, num_tokens, data)
        return n_stream, part

    def _read_cells(self, num_tokens: int) -> int:
        """The first position; cells must follow on one another and be this sequence's alone."""
        cells = self._take(num_tokens * CELL.itemsize).view(CELL)
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
            type_id, row_bytes = self.unpack(TENSOR)
            if row_bytes == 0 or row_bytes * num_tokens > self.num_left:
                raise StateLayoutError(
                    LayoutFault.ROW_SIZE, f"tensor {len(tensors)} claims rows of {row_bytes} bytes"
                )
            self._take(row_bytes * num_tokens)
            tensors.append(TensorRows(type_id, row_bytes))
        return tuple(tensors)

    def _skip_empty(self, num_streams: int) -> None:
        if num_streams and self._take(num_streams * U32.size).any():
            raise StateLayoutError(LayoutFault.WRONG_STREAMS, "another stream has cells")

    def _take(self, num_bytes: int) -> Bytes:
        if num_bytes > self.num_left:
            raise StateLayoutError(LayoutFault.TRUNCATED, f"{len(self._buffer)} bytes in all")
        taken = self._buffer[self._at : self._at + num_bytes]
        self._at += num_bytes
        return taken
