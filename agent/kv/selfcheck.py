"""Start-up proof that this library's state layout is the one the codec knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from agent.kv.codec import Block, SequenceState, compose_state, cut_block, parse_state
from agent.kv.layout import Geometry, StateLayoutError

# An odd part of a block.
_PARTIAL_TOKENS = 37


class StatePort(Protocol):
    """The part of the engine's runner that moves a sequence's state."""

    def state_get(self, slot: int, /) -> memoryview:
        """The sequence's state blob; valid until the next call."""

    def state_buffer(self, num_bytes: int, /) -> memoryview:
        """Memory to compose a state in; valid until the next call, or `state_get`."""

    def state_set(self, slot: int, blob: memoryview, /) -> int:
        """Replace the sequence's state; bytes read, 0 when llama.cpp refused it."""

    def clear(self, slot: int, /) -> None:
        """Forget the sequence."""


@dataclass(frozen=True, slots=True)
class CodecReport:
    """Whether the loaded model's prefixes can be kept as blocks, and if not, why."""

    geometry: Geometry | None
    n_stream: int
    reason: str  # empty when blocks work
    partial_blocks: bool = False  # so do partial ones

    @property
    def caches_blocks(self) -> bool:
        """True when blocks of this model can be restored."""
        return self.geometry is not None


def check_codec(port: StatePort, source: int, target: int) -> CodecReport:
    """Take `source`, which holds at least one full block, apart and rebuild it in `target`.

    For a sliding-window model the probe must not be longer than its window.

    Clears `target` before and after; leaves `source` as it is. Never raises for a
    layout it does not know: the report says so and the model runs uncached.
    """
    try:
        state = parse_state(port.state_get(source), source)
        if not state.has_block(0):
            return CodecReport(None, 0, "the start-up probe left no whole first block")
        blocks = [state.copy_block(i) for i in range(state.num_blocks) if state.has_block(i)]
        reason = _rebuild(port, target, state, blocks)
        partial = [*blocks[:-1], cut_block(state.geometry, blocks[-1], _PARTIAL_TOKENS)]
        partial_reason = reason or _rebuild(port, target, state, partial)
    except StateLayoutError as error:
        return CodecReport(None, 0, f"unknown KV state layout ({error})")
    finally:
        port.clear(target)
    if reason:
        return CodecReport(None, 0, reason)
    return CodecReport(state.geometry, state.n_stream, "", partial_blocks=not partial_reason)


def _rebuild(port: StatePort, target: int, like: SequenceState, blocks: list[Block]) -> str:
    """Put the blocks into `target` and read them back; why that failed, empty: it did not."""
    port.clear(target)
    blob = compose_state(like.geometry, like.n_stream, target, blocks)
    if port.state_set(target, blob.data) != len(blob):
        return "the engine library refused a rebuilt state"
    rebuilt = parse_state(port.state_get(target), target, like.geometry)
    start = 0
    for block in blocks:
        end = start + block.size // like.geometry.bytes_per_token
        rows = range(start, end)
        if not rebuilt.has_tokens(rows) or not np.array_equal(rebuilt.copy_tokens(rows), block):
            return "a rebuilt state reads back differently"
        start = end
    return "" if rebuilt.num_tokens == start else "a rebuilt state reads back differently"
