"""llama.cpp's batch, filled through numpy views instead of element by element."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from agent.engine.runner import DecodeItem


class Batch:
    """Reusable arrays for up to `capacity` tokens; `native` is what llama_decode takes."""

    def __init__(self, capacity: int) -> None:
        self._tokens = np.zeros(capacity, dtype=np.int32)
        self._positions = np.zeros(capacity, dtype=np.int32)
        self._slots = np.zeros(capacity, dtype=np.int32)
        self._counts = np.ones(capacity, dtype=np.int32)
        self._wants = np.zeros(capacity, dtype=np.int8)
        # One pointer for each token, to its element of `_slots`.
        self._slot_pointers = self._slots.ctypes.data + 4 * np.arange(capacity, dtype=np.uint64)
        self._slot_pointers = self._slot_pointers.astype(np.uint64)
        self.native = llama.llama_batch()
        self.native.token = _pointer(self._tokens, ctypes.c_int32)
        self.native.pos = _pointer(self._positions, ctypes.c_int32)
        self.native.n_seq_id = _pointer(self._counts, ctypes.c_int32)
        self.native.seq_id = _pointer(self._slot_pointers, ctypes.POINTER(ctypes.c_int32))
        self.native.logits = _pointer(self._wants, ctypes.c_int8)

    def fill_chunk(
        self, slot: int, tokens: Sequence[int], position: int, *, want_logits: bool
    ) -> None:
        """Consecutive tokens of one sequence; logits only for the last, if at all."""
        count = len(tokens)
        self._tokens[:count] = tokens
        self._positions[:count] = np.arange(position, position + count, dtype=np.int32)
        self._slots[:count] = slot
        self._wants[:count] = 0
        self._wants[count - 1] = want_logits
        self.native.n_tokens = count

    def fill_rows(self, slot: int, tokens: Sequence[int], position: int) -> None:
        """Consecutive tokens of one sequence, logits for each."""
        self.fill_chunk(slot, tokens, position, want_logits=True)
        self._wants[: len(tokens)] = 1

    def fill_decode(self, items: Sequence[DecodeItem]) -> None:
        """One token of each sequence, each with logits."""
        count = len(items)
        self._slots[:count] = [item.slot for item in items]
        self._positions[:count] = [item.position for item in items]
        self._tokens[:count] = [item.token for item in items]
        self._wants[:count] = 1
        self.native.n_tokens = count


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))
