"""llama.cpp's sampler chains, one for each sequence, and log-probabilities."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from agent.engine.output import Confidence, Logprob
from agent.engine.request import SamplingParams

# llama.cpp's default window of the repeat penalty, prompt included.
REPEAT_LAST_N = 64
# llama.cpp takes this seed for "choose one yourself".
_RANDOM_SEED = 0xFFFFFFFF
# exp() of this is zero in 32 bits.
_LEAST_RELATIVE = np.float32(-200.0)


class SamplerChain:
    """Chooses tokens for one sequence in llama.cpp; owns native memory until `close`.

    Order as in llama.cpp: logit bias, penalties, top-k, top-p, min-p, temperature,
    then a draw (or the likeliest). Presence and frequency penalties count generated
    tokens, as OpenAI's do; the repeat penalty sees the prompt's end as well.
    """

    def __init__(
        self, vocab_size: int, params: SamplingParams, prompt: Sequence[int], context_tokens: int
    ) -> None:
        chain_params = llama.llama_sampler_chain_default_params()
        chain_params.no_perf = True
        self._chain = llama.llama_sampler_chain_init(chain_params)
        if params.logit_bias:
            bias = (llama.llama_logit_bias * len(params.logit_bias))()
            for entry, (token, value) in zip(bias, params.logit_bias.items(), strict=True):
                entry.token, entry.bias = token, value
            self._add(llama.llama_sampler_init_logit_bias(vocab_size, len(bias), bias))
        if params.repeat_penalty != 1.0:
            repeat = llama.llama_sampler_init_penalties(
                vocab_size, REPEAT_LAST_N, params.repeat_penalty, 0.0, 0.0
            )
            for token in prompt[-REPEAT_LAST_N:]:
                llama.llama_sampler_accept(repeat, token)
            self._add(repeat)
        if params.frequency_penalty or params.presence_penalty:
            self._add(
                llama.llama_sampler_init_penalties(
                    vocab_size,
                    context_tokens,
                    1.0,
                    params.frequency_penalty,
                    params.presence_penalty,
                )
            )
        if params.temperature == 0.0:
            self._add(llama.llama_sampler_init_greedy())
            return
        if params.top_k > 0:
            self._add(llama.llama_sampler_init_top_k(params.top_k))
        if params.top_p < 1.0:
            self._add(llama.llama_sampler_init_top_p(params.top_p, 1))
        if params.min_p > 0.0:
            self._add(llama.llama_sampler_init_min_p(params.min_p, 1))
        if params.temperature != 1.0:
            self._add(llama.llama_sampler_init_temp(params.temperature))
        self._add(llama.llama_sampler_init_dist(_seed32(params.seed)))

    def sample(self, context: Any, row: int) -> int:
        """Choose from the logits of the context's last output row `row`, and remember it."""
        token: int = llama.llama_sampler_sample(self._chain, context, row)
        return token

    def close(self) -> None:
        """Free the chain and its samplers."""
        if self._chain:
            llama.llama_sampler_free(self._chain)
            self._chain = None

    def _add(self, sampler: Any) -> None:
        llama.llama_sampler_chain_add(self._chain, sampler)


def _seed32(seed: int | None) -> int:
    if seed is None:
        seed = int.from_bytes(os.urandom(4), "little")
    folded = (seed ^ (seed >> 32)) & 0xFFFFFFFF
    return folded if folded != _RANDOM_SEED else 0


def logprob_of(logits: NDArray[np.float32], token: int, num_top: int) -> Logprob:
    """Log-probabilities of the token and the `num_top` likeliest, before temperature."""
    highest = float(logits.max())
    log_sum = highest + float(np.log(np.exp(logits - highest).sum(dtype=np.float64)))
    top: tuple[tuple[int, float], ...] = ()
    if num_top > 0:
        likeliest = np.argpartition(logits, -num_top)[-num_top:]
        likeliest = likeliest[np.argsort(-logits[likeliest], kind="stable")]
        top = tuple((int(t), float(logits[t]) - log_sum) for t in likeliest)
    return Logprob(float(logits[token]) - log_sum, top)


def confidence_of(logits: NDArray[np.float32], token: int) -> Confidence:
    """How sure the model was, before temperature; about 0.1 ms for 49,152 logits."""
    likeliest = int(logits.argmax())
    relative = logits - logits[likeliest]
    weights = np.exp(relative)
    total = float(weights.sum(dtype=np.float64))
    # All that have weight: an infinitely unlikely token adds nothing, and would add NaN.
    log_total = float(np.log(total))
    mean = float(np.dot(weights, np.maximum(relative, _LEAST_RELATIVE))) / total
    second = max(
        float(part.max(initial=0.0)) for part in (weights[:likeliest], weights[likeliest + 1 :])
    )
    return Confidence(
        logprob=float(relative[token]) - log_total,
        entropy=log_total - mean,
        margin=(1.0 - second) / total,
    )
