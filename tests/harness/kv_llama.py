"""The least that prefills and moves state: llama.cpp's low-level API, no engine of ours."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from shoal.blocks import BLOCK_TOKENS


class Engine:
    """One low-level context with per-sequence KV; the least that decodes and moves state."""

    def __init__(self, model: object, slots: int, kv_type: int) -> None:
        params = llama.llama_context_default_params()
        params.n_ctx = 512 * slots
        params.n_seq_max = slots
        params.n_batch = params.n_ubatch = BLOCK_TOKENS
        params.kv_unified = False
        params.swa_full = True
        params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.type_k = params.type_v = kv_type
        params.n_threads = params.n_threads_batch = 1
        self.slots = slots
        self.context = llama.llama_init_from_model(model, params)
        assert self.context
        vocab = llama.llama_model_get_vocab(model)
        self._num_vocab = llama.llama_vocab_n_tokens(vocab)
        self._batch = llama.llama_batch_init(BLOCK_TOKENS, 0, 1)

    def decode(self, seq: int, start: int, tokens: list[int]) -> npt.NDArray[np.float32]:
        """Prefill in canonical cuts; the last token's logits."""
        for chunk_at in range(0, len(tokens), BLOCK_TOKENS):
            chunk = tokens[chunk_at : chunk_at + BLOCK_TOKENS]
            for i, token in enumerate(chunk):
                self._batch.token[i] = token
                self._batch.pos[i] = start + chunk_at + i
                self._batch.n_seq_id[i] = 1
                self._batch.seq_id[i][0] = seq
                self._batch.logits[i] = i == len(chunk) - 1
            self._batch.n_tokens = len(chunk)
            assert llama.llama_decode(self.context, self._batch) == 0
        logits = llama.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(logits, (self._num_vocab,)).copy()

    def state_get(self, slot: int, /) -> memoryview:
        size = llama.llama_state_seq_get_size(self.context, slot)
        blob = np.empty(size, dtype=np.uint8)
        pointer = blob.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        assert llama.llama_state_seq_get_data(self.context, pointer, size, slot) == size
        return blob.data

    def state_buffer(self, num_bytes: int, /) -> memoryview:
        return memoryview(bytearray(num_bytes))

    def state_set(self, slot: int, blob: memoryview, /) -> int:
        view = np.frombuffer(blob, dtype=np.uint8)
        pointer = view.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        return int(llama.llama_state_seq_set_data(self.context, pointer, len(view), slot))

    def clear(self, seq: int) -> None:
        memory = llama.llama_get_memory(self.context)
        llama.llama_memory_seq_rm(memory, seq, -1, -1)

    def close(self) -> None:
        llama.llama_batch_free(self._batch)
        llama.llama_free(self.context)


SILENT = llama.llama_log_callback(lambda *_: None)


@contextmanager
def loaded_model(path: Path) -> Iterator[object]:
    llama.llama_log_set(SILENT, ctypes.c_void_p())
    llama.llama_backend_init()
    loaded = llama.llama_model_load_from_file(
        str(path).encode(), llama.llama_model_default_params()
    )
    assert loaded
    yield loaded
    llama.llama_model_free(loaded)
