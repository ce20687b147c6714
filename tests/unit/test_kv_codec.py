from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from agent.kv.codec import compose_state, parse_state
from agent.kv.layout import CacheShape, Geometry, LayoutFault, StateLayoutError, TensorRows
from agent.kv.selfcheck import check_codec
from shoal.blocks import BLOCK_TOKENS

MAGIC = 0x6C6D7364


def make_blob(
    num_tokens: int, seq_id: int, n_stream: int, tensors: list[tuple[int, int]], *, first: int = 0
) -> bytes:
    """Written field by field as llama.cpp writes it, independently of the codec."""
    rng = random.Random(1)
    n_layer = len(tensors) // 2
    out = struct.pack("<IiI", MAGIC, seq_id, n_stream) + struct.pack("<I", 0) * seq_id
    out += struct.pack("<I", num_tokens)
    for position in range(first, first + num_tokens):
        out += struct.pack("<iIi", position, 1, seq_id)
    out += struct.pack("<II", 0, n_layer)
    for type_id, row_bytes in tensors:
        out += struct.pack("<iQ", type_id, row_bytes) + rng.randbytes(row_bytes * num_tokens)
    return out + struct.pack("<I", 0) * (n_stream - seq_id - 1)


UNIFORM = [(1, 6)] * 4
WINDOW = [(1, 8)] * 2
MIXED = [(1, 6), (1, 6), (1, 10), (8, 34), (8, 34), (1, 2)]


def fault_of(blob: bytes, seq_id: int, expected: Geometry | None = None) -> LayoutFault:
    with pytest.raises(StateLayoutError) as caught:
        parse_state(blob, seq_id, expected)
    return caught.value.fault


@pytest.mark.parametrize("tensors", [UNIFORM, MIXED])
@pytest.mark.parametrize(
    ("source", "target"), [((0, 1), (0, 1)), ((2, 4), (5, 8)), ((3, 4), (0, 2))]
)
def test_blocks_of_one_sequence_compose_into_another(
    tensors: list[tuple[int, int]], source: tuple[int, int], target: tuple[int, int]
) -> None:
    num_tokens = 3 * BLOCK_TOKENS
    blob = make_blob(num_tokens, *source, tensors)
    state = parse_state(blob, source[0])
    blocks = [state.copy_block(i) for i in range(state.num_blocks)]
    composed = compose_state(state.geometry, target[1], target[0], blocks)
    assert composed.tobytes() == make_blob(num_tokens, *target, tensors)


def test_a_partial_last_block_is_left_out() -> None:
    state = parse_state(make_blob(BLOCK_TOKENS + 7, 0, 1, UNIFORM), 0)
    assert (state.num_tokens, state.num_blocks) == (BLOCK_TOKENS + 7, 1)
    with pytest.raises(IndexError):
        state.copy_block(1)


def test_a_block_is_its_own_rows_of_each_tensor() -> None:
    num_tokens = 2 * BLOCK_TOKENS
    blob = make_blob(num_tokens, 0, 1, UNIFORM)
    state = parse_state(blob, 0)
    rows = [
        state.parts[0]
        .data[i * (12 + 6 * num_tokens) + 12 :][: 6 * num_tokens]
        .reshape(num_tokens, 6)
        for i in range(4)
    ]
    expected = np.concatenate([tensor[BLOCK_TOKENS:].ravel() for tensor in rows])
    np.testing.assert_array_equal(state.copy_block(1), expected)


def test_copied_blocks_outlive_the_blob() -> None:
    blob = np.frombuffer(make_blob(BLOCK_TOKENS, 0, 1, UNIFORM), dtype=np.uint8).copy()
    block = parse_state(blob, 0).copy_block(0)
    before = block.copy()
    blob[:] = 0
    np.testing.assert_array_equal(block, before)


def test_each_unexpected_part_is_refused_by_name() -> None:
    good = make_blob(BLOCK_TOKENS, 1, 3, UNIFORM)
    cells_at = 12 + 4 + 4
    data_at = cells_at + 12 * BLOCK_TOKENS

    def patched(at: int, value: int) -> bytes:
        return good[:at] + struct.pack("<I", value) + good[at + 4 :]

    assert fault_of(good, 0) is LayoutFault.WRONG_SEQUENCE
    assert fault_of(patched(8, 1), 1) is LayoutFault.WRONG_STREAMS
    assert fault_of(patched(8, 4000), 1) is LayoutFault.WRONG_STREAMS
    assert fault_of(patched(12, 5), 1) is LayoutFault.WRONG_STREAMS
    assert fault_of(patched(len(good) - 4, 5), 1) is LayoutFault.WRONG_STREAMS
    assert fault_of(patched(16, 0), 1) is LayoutFault.EMPTY
    assert fault_of(patched(16, 2**31), 1) is LayoutFault.TRUNCATED
    assert fault_of(patched(cells_at + 12, 9), 1) is LayoutFault.CELLS
    assert fault_of(patched(cells_at + 4, 2), 1) is LayoutFault.CELLS
    assert fault_of(patched(cells_at + 8, 2), 1) is LayoutFault.CELLS
    assert fault_of(patched(data_at, 1), 1) is LayoutFault.VALUES_TRANSPOSED
    assert fault_of(patched(data_at + 4, 10**6), 1) is LayoutFault.LAYERS
    assert fault_of(patched(data_at + 12, 0), 1) is LayoutFault.ROW_SIZE
    assert fault_of(patched(data_at + 16, 1), 1) is LayoutFault.ROW_SIZE
    assert fault_of(good + bytes(3), 1) is LayoutFault.TRUNCATED
    assert fault_of(good + good[8:] + bytes(1), 1) is LayoutFault.TRAILING_BYTES
    assert fault_of(good[:-5], 1) in (LayoutFault.TRUNCATED, LayoutFault.ROW_SIZE)
    assert fault_of(b"", 1) is LayoutFault.TRUNCATED
    other = parse_state(make_blob(BLOCK_TOKENS, 1, 3, MIXED), 1).geometry
    assert fault_of(good, 1, other) is LayoutFault.GEOMETRY


def two_caches(num_tokens: int, window: int, seq_id: int, n_stream: int) -> bytes:
    """A sliding-window model's blob: the full cache, then the window's newest tokens."""
    first = num_tokens - min(window, num_tokens)
    full = make_blob(num_tokens, seq_id, n_stream, MIXED)
    return full + make_blob(num_tokens - first, seq_id, n_stream, WINDOW, first=first)[8:]


def test_a_windows_block_is_there_only_while_the_window_holds_it() -> None:
    state = parse_state(two_caches(3 * BLOCK_TOKENS, 2 * BLOCK_TOKENS, 1, 2), 1)
    assert state.geometry.has_window
    assert [state.has_block(i) for i in range(4)] == [False, True, True, False]
    assert state.copy_block(1).nbytes == state.geometry.block_bytes
    with pytest.raises(IndexError):
        state.copy_block(0)


def test_blocks_taken_one_by_one_as_the_window_moves_compose_the_whole_state() -> None:
    blocks = []
    for num_blocks in range(1, 4):
        blob = two_caches(num_blocks * BLOCK_TOKENS, 200, 1, 2)
        blocks.append(parse_state(blob, 1).copy_block(num_blocks - 1))
    geometry = parse_state(two_caches(BLOCK_TOKENS, 200, 1, 2), 1).geometry
    state = parse_state(compose_state(geometry, 5, 3, blocks), 3, geometry)
    assert [part.num_tokens for part in state.parts] == [3 * BLOCK_TOKENS] * 2
    for index, block in enumerate(blocks):
        np.testing.assert_array_equal(state.copy_block(index), block)


def test_caches_that_end_at_different_positions_are_refused() -> None:
    blob = make_blob(300, 0, 1, UNIFORM) + make_blob(128, 0, 1, UNIFORM, first=100)[8:]
    assert fault_of(blob, 0) is LayoutFault.CELLS
    assert fault_of(make_blob(128, 0, 1, UNIFORM, first=1), 0) is LayoutFault.CELLS


def test_random_damage_never_escapes_as_another_error() -> None:
    rng = random.Random(3)
    good = make_blob(BLOCK_TOKENS, 1, 2, MIXED)
    for _ in range(2000):
        blob = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            # The head and the tensor headers, where damage could mislead the parser.
            blob[rng.randrange(0, len(blob))] = rng.randrange(256)
        cut = rng.choice([len(blob), rng.randrange(len(blob))])
        try:
            state = parse_state(bytes(blob[:cut]), 1)
        except StateLayoutError:
            continue
        assert state.num_tokens == BLOCK_TOKENS


def test_blocks_of_another_size_do_not_compose() -> None:
    geometry = Geometry(MAGIC, (CacheShape(1, (TensorRows(1, 2), TensorRows(1, 2))),))
    with pytest.raises(StateLayoutError) as caught:
        compose_state(geometry, 1, 0, [np.zeros(7, dtype=np.uint8)])
    assert caught.value.fault is LayoutFault.BLOCK_SIZE
    with pytest.raises(ValueError, match="0 blocks"):
        compose_state(geometry, 1, 0, [])


class Port:
    """A state port over plain blobs; `spoil` changes what is read back."""

    def __init__(self, source: bytes, *, refuse: bool = False, spoil: bool = False) -> None:
        self.states: dict[int, bytes] = {0: source}
        self.refuse, self.spoil = refuse, spoil

    def state_get(self, slot: int, /) -> memoryview:
        return memoryview(self.states.get(slot, b""))

    def state_buffer(self, num_bytes: int, /) -> memoryview:
        return memoryview(bytearray(num_bytes))

    def state_set(self, slot: int, blob: memoryview, /) -> int:
        if self.spoil:
            blob[-20] ^= 1
        self.states[slot] = blob.tobytes()
        return 0 if self.refuse else len(blob)

    def clear(self, slot: int, /) -> None:
        self.states.pop(slot, None)


def test_self_check_passes_and_leaves_the_target_empty() -> None:
    port = Port(make_blob(2 * BLOCK_TOKENS + 3, 0, 2, MIXED))
    report = check_codec(port, 0, 1)
    assert report.caches_blocks
    assert report.partial_blocks
    assert (report.n_stream, report.reason) == (2, "")
    assert 1 not in port.states


def test_self_check_tells_when_only_whole_blocks_come_back() -> None:
    class WholeOnly(Port):
        def state_set(self, slot: int, blob: memoryview, /) -> int:
            whole = len(blob) == len(self.states[0])
            return super().state_set(slot, blob) if whole else 0

    report = check_codec(WholeOnly(make_blob(2 * BLOCK_TOKENS, 0, 2, MIXED)), 0, 1)
    assert report.caches_blocks
    assert not report.partial_blocks


@pytest.mark.parametrize(
    ("port", "reason"),
    [
        (Port(make_blob(5, 0, 2, UNIFORM)), "no whole first block"),
        (Port(make_blob(128, 0, 2, UNIFORM), refuse=True), "refused"),
        (Port(make_blob(128, 0, 2, UNIFORM), spoil=True), "differently"),
        (Port(make_blob(128, 0, 2, UNIFORM) + b"more"), "wrong_streams"),
        (Port(two_caches(300, 128, 0, 2)), "no whole first block"),
    ],
)
def test_self_check_says_why_a_model_is_not_cached(port: Port, reason: str) -> None:
    report = check_codec(port, 0, 1)
    assert not report.caches_blocks
    assert reason in report.reason
