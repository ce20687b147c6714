"""A request's distribution over the next token, as its sampler chain would draw from it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from agent.engine.request import SamplingParams
from agent.llama.sampler import SamplerChain
from agent.speculative.acceptance import Draft, Probabilities, SparseDistribution

_ENTRY = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
# A draft names at most so many tokens: a few hundred bytes a token on the wire. The rest
# holds little, and what is left out costs acceptance only, never the distribution.
MOST_NAMED = 24


class NextToken:
    """Biases, penalties, top-k, top-p, min-p and temperature by llama.cpp's own chain.

    The chain without its last sampler, which would draw. Owns native memory until
    `close`; for the engine's thread.
    """

    def __init__(
        self, vocab_size: int, params: SamplingParams, prompt: Sequence[int], context_tokens: int
    ) -> None:
        self._size = vocab_size
        self.is_greedy = params.temperature == 0.0
        self._is_plain = params.is_plain_greedy
        self._chain = (
            None if self._is_plain else _Filters(vocab_size, params, prompt, context_tokens)
        )

    def likeliest(self, rows: NDArray[np.float32], drafts: Sequence[int]) -> list[int]:
        """For each row the greedy choice, given that the drafts before it stand."""
        if self._chain is None:
            chosen: list[int] = rows.argmax(axis=1).tolist()
            return chosen
        with self._chain.fork() as fork:
            result = []
            for row, logits in enumerate(rows):
                ids, values = fork.apply(logits)
                result.append(int(ids[values.argmax()]))
                if row < len(drafts):
                    fork.accept(drafts[row])
        return result

    def probabilities(self, logits: NDArray[np.float32], before: Sequence[int]) -> Probabilities:
        """The distribution after `before`, tokens that the chain has not accepted yet."""
        if self._chain is None:
            raise AssertionError("greedy choices have no distribution")
        with self._chain.fork() as fork:
            for token in before:
                fork.accept(token)
            ids, values = fork.apply(logits)
        weights = np.exp(values.astype(np.float64) - float(values.max()))
        result = np.zeros(self._size)
        result[ids] = weights / weights.sum()
        return result

    def draft(
        self, logits: NDArray[np.float32], before: Sequence[int], uniform: float
    ) -> tuple[Draft, float]:
        """A token by this model, and how sure it was: the token's probability.

        Drawn from the likeliest few, which are told with it, or the greedy choice.
        """
        if self.is_greedy:
            token = self.likeliest(logits[None, :], ())[0]
            # A bias may choose what is all but impossible: infinitely many to one.
            with np.errstate(over="ignore"):
                return Draft(token), float(1.0 / np.exp(logits - logits[token]).sum())
        wanted = self.probabilities(logits, before)
        ids = np.argpartition(wanted, -MOST_NAMED)[-MOST_NAMED:]
        ids = ids[wanted[ids] > 0]
        # As the wire carries them: what is drawn from and what is told are the same numbers.
        told = wanted[ids].astype(np.float32)
        few = SparseDistribution.of(ids.tolist(), told.tolist(), self._size)
        token = few.draw(uniform)
        return Draft(token, few), float(wanted[token])

    def accept(self, tokens: Sequence[int]) -> None:
        """Remember tokens that stand, for the penalties."""
        if self._chain is not None:
            for token in tokens:
                self._chain.accept(token)

    def close(self) -> None:
        """Free the chain."""
        if self._chain is not None:
            self._chain.close()


class _Filters(SamplerChain):
    """A chain that changes and cuts logits, and draws nothing."""

    def __init__(
        self, vocab_size: int, params: SamplingParams, prompt: Sequence[int], context_tokens: int
    ) -> None:
        super().__init__(vocab_size, params, prompt, context_tokens)
        self._entries = np.empty(vocab_size, dtype=_ENTRY)
        self._ids = np.arange(vocab_size, dtype=np.int32)
        last = llama.llama_sampler_chain_n(self._chain) - 1
        llama.llama_sampler_free(llama.llama_sampler_chain_remove(self._chain, last))

    def fork(self) -> _Fork:
        """A copy that may go on as if drafts stood."""
        return _Fork(llama.llama_sampler_clone(self._chain), self._entries, self._ids)

    def accept(self, token: int) -> None:
        """Remember a token that stands."""
        llama.llama_sampler_accept(self._chain, token)


class _Fork:
    """A chain's copy; freed at the end of its `with`."""

    def __init__(self, chain: object, entries: NDArray[np.void], ids: NDArray[np.int32]) -> None:
        self._chain = chain
        self._entries = entries
        self._ids = ids

    def __enter__(self) -> _Fork:
        return self

    def __exit__(self, *_: object) -> None:
        llama.llama_sampler_free(self._chain)

    def accept(self, token: int) -> None:
        llama.llama_sampler_accept(self._chain, token)

    def apply(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """What remains of the vocabulary, with its changed logits; valid until the next call."""
        entries = self._entries
        entries["id"], entries["logit"], entries["p"] = self._ids, logits, 0.0
        array: Any = llama.llama_token_data_array()
        array.data = entries.ctypes.data_as(ctypes.POINTER(llama.llama_token_data))
        array.size, array.selected, array.sorted = len(entries), -1, False
        llama.llama_sampler_apply(self._chain, ctypes.byref(array))
        # A sampler may have made the array smaller, and in its own memory.
        address = ctypes.cast(array.data, ctypes.c_void_p).value
        buffer: Any = (ctypes.c_char * (array.size * _ENTRY.itemsize)).from_address(address or 0)
        left = np.frombuffer(buffer, dtype=_ENTRY)
        return left["id"].copy(), left["logit"].copy()
