"""A llama.cpp context as the engine's runner. One thread owns it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from agent.config import BLOCK_TOKENS
from agent.engine.output import SampledToken
from agent.engine.request import SamplingParams
from agent.engine.runner import DecodeItem, RunnerError, Sampler
from agent.llama.batch import Batch
from agent.llama.model import Model
from agent.llama.sampler import SamplerChain, confidence_of, logprob_of
from shoal.kv_budget import CELL_MULTIPLE

_FLASH_ATTENTION_ON = 1  # LLAMA_FLASH_ATTN_TYPE_ENABLED
_GGML_TYPES = {"f16": llama.GGML_TYPE_F16, "q8_0": llama.GGML_TYPE_Q8_0}
# Memory for states that is held for good; a longer sequence's is given back.
KEPT_BLOB_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ContextShape:
    """How many sequences of how many tokens, computed by how many threads, kept in what type."""

    slots: int
    context_tokens: int
    threads: int
    kv_type: str = "f16"


@dataclass(slots=True)
class _Slot:
    sampling: SamplingParams
    chain: SamplerChain | None

    def close(self) -> None:
        """Free the sampler."""
        if self.chain is not None:
            self.chain.close()


class LlamaRunner:
    """Computes sequences with per-sequence KV and flash attention.

    A prefill chunk is a call of its own, and so is a decode of all running
    sequences: a mixed call would be split at other places than multiples of 128,
    and the text would depend on who else is running.
    """

    def __init__(self, model: Model, shape: ContextShape) -> None:
        """Reserve the KV of all slots. Raises RunnerError when that fails."""
        self.model = model
        self._shape = shape
        cells = -(-shape.context_tokens // CELL_MULTIPLE) * CELL_MULTIPLE
        params = llama.llama_context_default_params()
        params.n_ctx = cells * shape.slots
        params.n_batch = params.n_ubatch = max(BLOCK_TOKENS, shape.slots)
        params.n_seq_max = shape.slots
        params.n_threads = params.n_threads_batch = shape.threads
        params.flash_attn_type = _FLASH_ATTENTION_ON
        params.type_k = params.type_v = _GGML_TYPES[shape.kv_type]
        params.kv_unified = False
        # A sliding window's rows must all be there to be restored (agent.kv.codec).
        params.swa_full = True
        params.no_perf = True
        self.context = llama.llama_init_from_model(model.handle, params)
        if not self.context:
            raise RunnerError(
                f"llama.cpp cannot make a context of {shape.slots} sequences of "
                f"{shape.context_tokens} tokens in {shape.kv_type}; lower --slots or --context"
            )
        self._memory = llama.llama_get_memory(self.context)
        self._batch = Batch(params.n_batch)
        self._slots: list[_Slot | None] = [None] * shape.slots
        self._blob = bytearray()
        # Position from which a sequence is decoded in a call of its own; None: never.
        self.decode_alone_from: int | None = None
        # Whether KV and logits do not depend on where a prompt was cut, down to single rows: any
        # prefix can be reused, and drafts verified in one pass. None: nobody asked.
        self.cut_invariant: bool | None = None

    @property
    def slots(self) -> int:
        """Sequences that can run at once."""
        return self._shape.slots

    @property
    def context_tokens(self) -> int:
        """Tokens that fit into one sequence."""
        return self._shape.context_tokens

    @property
    def kv_type(self) -> str:
        """Elements of the KV cache: a key of shoal.kv_budget.ELEMENT_BYTES."""
        return self._shape.kv_type

    @property
    def threads(self) -> int:
        """Threads that compute."""
        return self._shape.threads

    def start(self, slot: int, sampling: SamplingParams, prompt: Sequence[int]) -> None:
        """Empty the slot's KV and give it the request's sampler."""
        self.clear(slot)
        chain = None
        if not sampling.is_plain_greedy:
            chain = SamplerChain(self.model.vocab.size, sampling, prompt, self.context_tokens)
        self._slots[slot] = _Slot(sampling, chain)

    def prefill(
        self, slot: int, tokens: Sequence[int], position: int, *, want_token: bool
    ) -> SampledToken | None:
        """Put the tokens into the KV from `position` on; sample after the last if wanted."""
        self._batch.fill_chunk(slot, tokens, position, want_logits=want_token)
        self._compute()
        if not want_token:
            return None
        return self._sample([slot], outputs=[len(tokens) - 1])[0]

    def decode(self, batch: Sequence[DecodeItem]) -> list[SampledToken]:
        """Put one token of each sequence into its KV and sample the next, in order."""
        limit = self.decode_alone_from
        if limit is None or len(batch) == 1 or all(item.position < limit for item in batch):
            return self._decode_together(batch)
        sampled: dict[int, SampledToken] = {}
        short = [item for item in batch if item.position < limit]
        groups = [[item] for item in batch if item.position >= limit]
        for group in [short, *groups] if short else groups:
            for item, token in zip(group, self._decode_together(group), strict=True):
                sampled[item.slot] = token
        return [sampled[item.slot] for item in batch]

    def clear(self, slot: int) -> None:
        """Empty the slot's KV and free its sampler."""
        state = self._slots[slot]
        if state is not None:
            state.close()
        self._slots[slot] = None
        llama.llama_memory_seq_rm(self._memory, slot, -1, -1)

    def detach(self, slot: int) -> Sampler:
        """Empty the slot's KV and give its sampler out, as it stands."""
        state, self._slots[slot] = self._slots[slot], None
        if state is None:
            raise RunnerError(f"slot {slot} was not started")
        self.clear(slot)
        return state

    def attach(self, slot: int, sampler: Sampler) -> None:
        """Empty the slot's KV and give it a sampler that `detach` gave out."""
        if not isinstance(sampler, _Slot):
            raise TypeError("not a sampler of this runner")
        self.clear(slot)
        self._slots[slot] = sampler

    def truncate(self, slot: int, position: int) -> None:
        """Drop the slot's KV from `position` on."""
        llama.llama_memory_seq_rm(self._memory, slot, position, -1)

    def state_get(self, slot: int) -> memoryview:
        """The sequence's KV as llama.cpp's own blob; valid until the next call."""
        size = llama.llama_state_seq_get_size(self.context, slot)
        blob = self.state_buffer(size)
        buffer = (ctypes.c_uint8 * size).from_buffer(blob)
        written = llama.llama_state_seq_get_data(self.context, buffer, size, slot)
        if written != size:
            raise RunnerError(f"state of slot {slot}: {written} of {size} bytes written")
        return blob

    def state_buffer(self, num_bytes: int) -> memoryview:
        """Memory to compose a state in: the same as `state_get` uses, and valid as long.

        Fresh memory costs several times what copying into it does, so it is kept.
        """
        blob = self._blob
        if len(blob) < num_bytes:
            blob = bytearray(num_bytes)
            if num_bytes <= KEPT_BLOB_BYTES:
                self._blob = blob
        return memoryview(blob)[:num_bytes]

    def state_set(self, slot: int, blob: bytes | memoryview) -> int:
        """Replace the sequence's KV with an authenticated blob; the number of bytes read.

        0 means that llama.cpp refused it; the slot's KV is then empty.
        """
        view = np.frombuffer(blob, dtype=np.uint8)
        pointer = view.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        count: int = llama.llama_state_seq_set_data(self.context, pointer, view.size, slot)
        if count == 0:
            llama.llama_memory_seq_rm(self._memory, slot, -1, -1)
        return count

    def piece(self, token: int) -> bytes:
        """The token's bytes as they appear in output; empty for control tokens."""
        return self.model.vocab.piece(token)

    def is_end(self, token: int) -> bool:
        """True for an end-of-generation token."""
        return token in self.model.vocab.ends

    def close(self) -> None:
        """Free the context; the object is not to be used after."""
        if self.context:
            for slot in range(self.slots):
                self.clear(slot)
            llama.llama_free(self.context)
            self.context = None

    def logits(self, num_rows: int) -> NDArray[np.float32]:
        """A view of the last call's logits, one row an output, in the batch's order.

        Valid until the next call of the runner.
        """
        pointer = llama.llama_get_logits(self.context)
        return np.ctypeslib.as_array(pointer, shape=(num_rows, self.model.vocab.size))

    def compute_decode(self, batch: Sequence[DecodeItem]) -> NDArray[np.float32]:
        """Put one token of each sequence into its KV; a view of the logits, in order."""
        self._batch.fill_decode(batch)
        self._compute()
        return self.logits(len(batch))

    def compute_rows(self, slot: int, tokens: Sequence[int], position: int) -> NDArray[np.float32]:
        """Put consecutive tokens into the KV from `position` on; a view of the logits of each.

        At most BLOCK_TOKENS of them.
        """
        self._batch.fill_rows(slot, tokens, position)
        self._compute()
        return self.logits(len(tokens))

    def _decode_together(self, batch: Sequence[DecodeItem]) -> list[SampledToken]:
        self._batch.fill_decode(batch)
        self._compute()
        return self._sample([item.slot for item in batch], outputs=range(len(batch)))

    def _compute(self) -> None:
        code = llama.llama_decode(self.context, self._batch.native)
        if code != 0:
            raise RunnerError(f"llama_decode returned {code}")

    def _sample(self, slots: Sequence[int], outputs: Sequence[int]) -> list[SampledToken]:
        """Tokens for slots whose logits are the last call's rows; `outputs` index the batch."""
        logits = self.logits(len(slots))
        greedy: list[int] | None = None
        result = []
        for row, (slot, output) in enumerate(zip(slots, outputs, strict=True)):
            state = self._slots[slot]
            if state is None:
                raise RunnerError(f"slot {slot} was not started")
            if state.chain is not None:
                token = state.chain.sample(self.context, output)
            else:
                # One pass over all rows: cheaper than a chain, which copies each row.
                greedy = greedy if greedy is not None else logits.argmax(axis=1).tolist()
                token = greedy[row]
            num_top = state.sampling.top_logprobs
            logprob = None if num_top is None else logprob_of(logits[row], token, num_top)
            sure = confidence_of(logits[row], token) if state.sampling.measure_confidence else None
            result.append(SampledToken(token, logprob, sure))
        return result
