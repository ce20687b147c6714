"""The plainest llama.cpp loop: one sequence, greedy, prefill cut at multiples of 128.

What the engine produces must equal this token for token, whatever else it runs.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np

CUT = 128


class Reference:
    """One model in a context of one sequence."""

    def __init__(self, model: Path, *, context: int = 2048) -> None:
        llama.llama_backend_init()
        llama.llama_log_set(_quiet, ctypes.c_void_p(0))
        self._model = llama.llama_model_load_from_file(
            str(model).encode(), llama.llama_model_default_params()
        )
        params = llama.llama_context_default_params()
        params.n_ctx = context
        params.n_seq_max = 1
        params.n_batch = CUT
        params.n_ubatch = CUT
        params.kv_unified = False
        # Stock llama.cpp splits the attention of a long sequence over its threads, and
        # the split decides the rounding: as many threads as the engine's default.
        params.n_threads = params.n_threads_batch = len(os.sched_getaffinity(0))
        params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self._context = llama.llama_init_from_model(self._model, params)
        self._vocab = llama.llama_model_get_vocab(self._model)
        self.vocab_size: int = llama.llama_vocab_n_tokens(self._vocab)
        self._batch = llama.llama_batch_init(CUT, 0, 1)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of `text`, without special tokens."""
        raw = text.encode()
        out = (llama.llama_token * (len(raw) + 8))()
        count = llama.llama_tokenize(self._vocab, raw, len(raw), out, len(out), False, False)
        return list(out[:count])

    def piece(self, token: int) -> bytes:
        """The bytes of one token, special tokens rendered as nothing."""
        buffer = ctypes.create_string_buffer(256)
        count = llama.llama_token_to_piece(self._vocab, token, buffer, 256, 0, False)
        return buffer.raw[: max(count, 0)]

    def greedy(self, prompt: list[int], max_tokens: int) -> list[int]:
        """Generate until an end token or `max_tokens`; the end token is not returned."""
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        for start in range(0, len(prompt), CUT):
            logits = self._decode(prompt[start : start + CUT], start)
        generated: list[int] = []
        while len(generated) < max_tokens:
            token = int(np.argmax(logits))
            if llama.llama_vocab_is_eog(self._vocab, token):
                break
            generated.append(token)
            if len(generated) < max_tokens:
                logits = self._decode([token], len(prompt) + len(generated) - 1)
        return generated

    def text(self, tokens: list[int]) -> str:
        """The text of generated tokens."""
        return b"".join(self.piece(t) for t in tokens).decode("utf-8", errors="replace")

    def _decode(self, tokens: list[int], start: int) -> np.ndarray:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = start + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i == len(tokens) - 1
        code = llama.llama_decode(self._context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        row = llama.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(row, shape=(self.vocab_size,))

    def close(self) -> None:
        """Free the context and the model."""
        llama.llama_batch_free(self._batch)
        llama.llama_free(self._context)
        llama.llama_model_free(self._model)


@llama.llama_log_callback
def _quiet(level: int, text: bytes, user_data: object) -> None:
    """Drop llama.cpp's own log lines."""
