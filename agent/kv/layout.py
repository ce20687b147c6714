"""The shape of a model's KV state, and what can be wrong with a blob of it.

A model has one cache, or two where some layers look only at a sliding window:
llama.cpp writes the full cache first and the window's behind it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from shoal.blocks import BLOCK_TOKENS

TENSOR_HEADER_BYTES = 12  # i32 type, u64 row bytes


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
    """A state blob or a block that is not laid out as the codec knows it."""

    def __init__(self, fault: LayoutFault, detail: str) -> None:
        super().__init__(f"{fault}: {detail}")
        self.fault = fault


@dataclass(frozen=True, slots=True)
class TensorRows:
    """One K or V tensor: its ggml type and the bytes of one token's row."""

    type_id: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class CacheShape:
    """One of a model's caches."""

    n_layer: int
    tensors: tuple[TensorRows, ...]  # K of every layer, then V of every layer

    @property
    def bytes_per_token(self) -> int:
        """KV bytes of one token over this cache's layers."""
        return sum(tensor.row_bytes for tensor in self.tensors)

    def runs(self) -> Iterator[tuple[int, int]]:
        """(number of tensors, row bytes) of neighbours with rows of one size."""
        first = 0
        for index in range(1, len(self.tensors) + 1):
            row_bytes = self.tensors[first].row_bytes
            if index == len(self.tensors) or self.tensors[index].row_bytes != row_bytes:
                yield index - first, row_bytes
                first = index


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape of one model's KV state, as read from a blob of the loaded model."""

    magic: int
    caches: tuple[CacheShape, ...]

    @property
    def bytes_per_token(self) -> int:
        """KV bytes of one token over all layers."""
        return sum(cache.bytes_per_token for cache in self.caches)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.bytes_per_token * BLOCK_TOKENS

    @property
    def has_window(self) -> bool:
        """True for a sliding-window model: export each block right after its prefill."""
        return len(self.caches) > 1

    def digest(self) -> bytes:
        """16 bytes that name the geometry; part of what a sealed block is bound to."""
        digest = hashlib.blake2b(f"{self.magic}/{BLOCK_TOKENS}".encode(), digest_size=16)
        for cache in self.caches:
            rows = ",".join(f"{tensor.type_id}:{tensor.row_bytes}" for tensor in cache.tensors)
            digest.update(f"/{cache.n_layer}/{rows}".encode())
        return digest.digest()
