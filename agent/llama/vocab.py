"""A model's vocabulary: text to tokens and back. Safe to use from any thread."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np

from agent.engine.guard import PromptPart

_TOKEN_NULL = -1


class Vocab:
    """Immutable after construction, which reads every token once (some 3 µs each)."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.size: int = llama.llama_vocab_n_tokens(handle)
        self.adds_bos: bool = llama.llama_vocab_get_add_bos(handle)
        buffer = ctypes.create_string_buffer(256)
        texts = [self._read_piece(token, buffer, special=True) for token in range(self.size)]
        controls = {t for t in range(self.size) if llama.llama_vocab_is_control(handle, t)}
        self.ends = frozenset(t for t in range(self.size) if llama.llama_vocab_is_eog(handle, t))
        # What a token looks like in output: control tokens have no text there.
        self._pieces = [b"" if t in controls else text for t, text in enumerate(texts)]
        self.control_texts = tuple(texts[t].decode(errors="replace") for t in sorted(controls))
        self.longest_piece_bytes = max(map(len, texts), default=1)
        self.bos_text = self._special_text(llama.llama_vocab_bos(handle), texts)
        self.eos_text = self._special_text(llama.llama_vocab_eos(handle), texts)

    def piece(self, token: int) -> bytes:
        """The token's bytes in output; empty for control tokens."""
        return self._pieces[token]

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Tokens of the text, as llama.cpp's own tokeniser makes them."""
        data = text.encode("utf-8", errors="replace")
        capacity = len(data) + 16
        tokens = np.empty(capacity, dtype=np.int32)
        pointer = tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        count = llama.llama_tokenize(
            self._handle, data, len(data), pointer, capacity, add_special, parse_special
        )
        if count < 0:
            tokens = np.empty(-count, dtype=np.int32)
            pointer = tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
            count = llama.llama_tokenize(
                self._handle, data, len(data), pointer, -count, add_special, parse_special
            )
        result: list[int] = tokens[:count].tolist()
        return result

    def tokenize_parts(self, parts: Sequence[PromptPart]) -> list[int]:
        """Tokens of a rendered chat; literal parts yield no control tokens.

        A template that writes the beginning-of-sequence token itself gets it once.
        """
        tokens: list[int] = []
        for index, part in enumerate(parts):
            add_special = index == 0 and not (
                self.bos_text and not part.is_literal and part.text.startswith(self.bos_text)
            )
            tokens += self.tokenize(
                part.text, add_special=add_special, parse_special=not part.is_literal
            )
        return tokens

    def _read_piece(self, token: int, buffer: Any, *, special: bool) -> bytes:
        length = llama.llama_token_to_piece(self._handle, token, buffer, len(buffer), 0, special)
        if length < 0:
            longer = ctypes.create_string_buffer(-length)
            length = llama.llama_token_to_piece(self._handle, token, longer, -length, 0, special)
            return longer.raw[:length]
        raw: bytes = buffer.raw[:length]
        return raw

    @staticmethod
    def _special_text(token: int, texts: Sequence[bytes]) -> str:
        return "" if token == _TOKEN_NULL else texts[token].decode(errors="replace")
