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
on the sequence id nor on the number of streams. A prompt's last block may be a
partial one, of fewer rows, laid out alike. llama.cpp trusts what it is
given, so anything unexpected is refused here, by name.

A window's cache keeps only the newest tokens, so a sliding-window model's block
has to be copied right after it was prefilled; restoring writes the window's rows
of every block, which needs a context with `swa_full`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from agent.kv.layout import (
    TENSOR_HEADER_BYTES,
    CacheShape,
    Geometry,
    LayoutFault,
    StateLayoutError,
)
from agent.kv.state_reader import (
    CELL,
    DATA_HEADER,
    HEADER,
    MAX_STREAMS,
    TENSOR,
    U32,
    Bytes,
    CachePart,
    StateReader,
)
from shoal.blocks import BLOCK_TOKENS

Block = Bytes  # one dimension, Geometry.block_bytes long; a partial one's is shorter

MAX_CACHES = 2


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
        return index >= 0 and self.has_tokens(_rows_of(index))

    def has_tokens(self, positions: range) -> bool:
        """Whether every cache still holds the rows of these positions."""
        first = max(part.first_position for part in self.parts)
        return first <= positions.start and positions.stop <= self.num_tokens

    def copy_block(self, index: int) -> Block:
        """Block `index` copied out of the blob; raises IndexError when it is not all there."""
        if not self.has_block(index):
            raise IndexError(f"block {index} of {self.num_blocks} is not in the state")
        return self.copy_tokens(_rows_of(index))

    def copy_tokens(self, positions: range) -> Block:
        """A partial block of these positions; raises IndexError when they are not all there."""
        if not self.has_tokens(positions):
            raise IndexError(f"tokens {positions} of {self.num_tokens} are not in the state")
        block = np.empty(self.geometry.bytes_per_token * len(positions), dtype=np.uint8)
        rest = block
        for part in self.parts:
            at = part.first_position
            rows_there = range(positions.start - at, positions.stop - at)
            for rows in _windows(part.shape, part.data, part.num_tokens, rows_there):
                rest[: rows.size].reshape(rows.shape)[:] = rows
                rest = rest[rows.size :]
        return block


def parse_state(
    blob: memoryview | bytes | Bytes, seq_id: int, expected: Geometry | None = None
) -> SequenceState:
    """Parse the blob of sequence `seq_id`; copies nothing.

    With `expected` the geometry must be that one. Raises StateLayoutError.
    """
    reader = StateReader(np.frombuffer(blob, dtype=np.uint8), seq_id)
    magic, blob_seq_id = reader.unpack(HEADER)
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


def cut_block(geometry: Geometry, block: Block, num_tokens: int) -> Block:
    """A copy of a block's first `num_tokens` rows, as a partial block.

    Raises StateLayoutError when the block does not hold so many.
    """
    held = _tokens_in(geometry, block)
    if not 0 < num_tokens <= held:
        raise StateLayoutError(LayoutFault.BLOCK_SIZE, f"{num_tokens} rows of {held}")
    cut = np.empty(geometry.bytes_per_token * num_tokens, dtype=np.uint8)
    to = at = 0
    for cache in geometry.caches:
        for count, row_bytes in cache.runs():
            held_bytes, cut_bytes = row_bytes * held, row_bytes * num_tokens
            tensors = block[at : at + count * held_bytes].reshape(count, held_bytes)
            cut[to : to + count * cut_bytes].reshape(count, cut_bytes)[:] = tensors[:, :cut_bytes]
            at += count * held_bytes
            to += count * cut_bytes
    return cut


def state_bytes(geometry: Geometry, n_stream: int, num_tokens: int) -> int:
    """Size of the blob that `compose_state` makes of blocks with so many tokens."""
    head_bytes = (1 + n_stream) * U32.size + num_tokens * CELL.itemsize + DATA_HEADER.size
    num_tensors = sum(len(cache.tensors) for cache in geometry.caches)
    return (
        HEADER.size
        + head_bytes * len(geometry.caches)
        + num_tensors * TENSOR.size
        + geometry.bytes_per_token * num_tokens
    )


def compose_state(
    geometry: Geometry,
    n_stream: int,
    seq_id: int,
    blocks: Sequence[Block],
    buffer: Bytes | None = None,
) -> Bytes:
    """One blob that restores `blocks`, the first ones of a sequence, into `seq_id`.

    The last block may be a partial one. With a `buffer` of at least `state_bytes` the
    blob is a view of it: fresh memory costs more than the copying. Raises
    StateLayoutError when a block has another size, and ValueError without blocks or for
    a sequence the context does not have.
    """
    if not blocks or not 0 <= seq_id < n_stream <= MAX_STREAMS:
        raise ValueError(f"{len(blocks)} blocks for sequence {seq_id} of {n_stream}")
    counts = [_tokens_in(geometry, block) for block in blocks]
    if any(count != BLOCK_TOKENS for count in counts[:-1]):
        raise StateLayoutError(LayoutFault.BLOCK_SIZE, "a partial block is not the last")
    num_tokens = sum(counts)
    head_bytes = (2 + seq_id) * U32.size + num_tokens * CELL.itemsize + DATA_HEADER.size
    tail_bytes = (n_stream - seq_id - 1) * U32.size
    num_bytes = state_bytes(geometry, n_stream, num_tokens)
    blob = np.empty(num_bytes, dtype=np.uint8) if buffer is None else buffer[:num_bytes]
    HEADER.pack_into(blob.data, 0, geometry.magic, seq_id)
    rest = blob[HEADER.size :]
    block_at = 0  # bytes of a token's rows in the caches before
    for cache in geometry.caches:
        _write_head(rest[:head_bytes], n_stream, seq_id, (num_tokens, cache.n_layer))
        rest = rest[head_bytes:]
        data_bytes = len(cache.tensors) * TENSOR.size + cache.bytes_per_token * num_tokens
        parts = [
            block[block_at * count :][: cache.bytes_per_token * count]
            for block, count in zip(blocks, counts, strict=True)
        ]
        _write_tensors(rest[:data_bytes], cache, parts)
        rest[data_bytes : data_bytes + tail_bytes] = 0
        rest = rest[data_bytes + tail_bytes :]
        block_at += cache.bytes_per_token
    return blob


def _write_head(out: Bytes, n_stream: int, seq_id: int, counts: tuple[int, int]) -> None:
    num_tokens, n_layer = counts
    cells_at = (2 + seq_id) * U32.size
    out[:cells_at] = 0
    U32.pack_into(out.data, 0, n_stream)
    U32.pack_into(out.data, cells_at - U32.size, num_tokens)
    cells = out[cells_at : -DATA_HEADER.size].view(CELL)
    cells["position"] = np.arange(num_tokens, dtype=np.int32)
    cells["num_seq_ids"] = 1
    cells["seq_id"] = seq_id
    DATA_HEADER.pack_into(out.data, len(out) - DATA_HEADER.size, 0, n_layer)


def _rows_of(index: int) -> range:
    return range(index * BLOCK_TOKENS, (index + 1) * BLOCK_TOKENS)


def _tokens_in(geometry: Geometry, block: Block) -> int:
    """Tokens of a whole or partial block; raises StateLayoutError for another size."""
    num_tokens, left = divmod(block.size, geometry.bytes_per_token)
    if block.dtype != np.uint8 or block.ndim != 1 or left or not 0 < num_tokens <= BLOCK_TOKENS:
        raise StateLayoutError(
            LayoutFault.BLOCK_SIZE,
            f"{block.nbytes} bytes, not {geometry.bytes_per_token} for each of up to 128 tokens",
        )
    return num_tokens


def _write_tensors(out: Bytes, cache: CacheShape, blocks: Sequence[Bytes]) -> None:
    counts = [block.size // cache.bytes_per_token for block in blocks]
    num_tokens = sum(counts)
    offset = 0
    for tensor in cache.tensors:
        TENSOR.pack_into(out.data, offset, tensor.type_id, tensor.row_bytes)
        offset += TENSOR.size + tensor.row_bytes * num_tokens
    for index, (block, count) in enumerate(zip(blocks, counts, strict=True)):
        at = 0
        first = index * BLOCK_TOKENS
        for rows in _windows(cache, out, num_tokens, range(first, first + count)):
            rows[:] = block[at : at + rows.size].reshape(rows.shape)
            at += rows.size


def _windows(cache: CacheShape, data: Bytes, num_tokens: int, rows: range) -> Iterator[Bytes]:
    """The bytes of a block's rows in `data`, a line a tensor, in order of the tensors.

    Tensors with rows of one size lie at one stride, so a model needs one or two
    windows, not one for each tensor.
    """
    at = 0
    for count, row_bytes in cache.runs():
        stride = TENSOR_HEADER_BYTES + row_bytes * num_tokens
        first = TENSOR_HEADER_BYTES + rows.start * row_bytes
        tensors = data[at : at + count * stride].reshape(count, stride)
        yield tensors[:, first : first + row_bytes * len(rows)]
        at += count * stride
