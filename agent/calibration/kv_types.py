"""In which elements the KV cache is kept: f16, unless q8_0 is needed or clearly faster; pure.

q8_0 takes about half of f16's memory and rounds more. It is never taken where the engine found
that a text would then depend on the batch or on the cuts of its prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.gguf_facts import GgufFacts
from shoal.kv_budget import FitRequest, default_context_tokens, plan_kv

# A sequence should hold a conversation of some turns: less than this is short.
USUAL_CONTEXT_TOKENS = 2048
# Faster by less than this is no reason to round more, and may be the measurement's noise.
_CLEARLY = 1.25


@dataclass(frozen=True, slots=True)
class KvTried:
    """What a calibration found of q8_0 beside f16, all else the same; seconds for a usual request.

    `failure` says why q8_0 did not serve, or was not tried; `invariant`: see the module.
    `confirmed`: f16 was measured once more after q8_0 had looked clearly faster.
    """

    f16_s: float
    q8_0_s: float = 0.0
    invariant: bool = False
    failure: str = ""
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class KvWish:
    """What is wanted of a model; None: 8 sequences, and the usual context."""

    slots: int | None = None
    context_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class KvType:
    """A key of shoal.kv_budget.ELEMENT_BYTES, and the reason."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"KV in {self.name}: {self.why}"


def is_clearly_faster(q8_0_s: float, f16_s: float) -> bool:
    """Whether a usual request takes so much less with q8_0 that it is worth rounding more."""
    return q8_0_s * _CLEARLY < f16_s


def choose_kv_type(tried: KvTried, shortage: str) -> KvType:
    """`shortage`: what f16 does not give of what is wanted; empty: it gives all."""
    if tried.failure:
        return KvType("f16", f"q8_0 was not measured ({tried.failure})")
    if not tried.invariant:
        return KvType("f16", "with q8_0 a text would depend on how the work is cut here")
    if shortage:
        return KvType("q8_0", shortage)
    told = f"{tried.q8_0_s:.2f} s for a usual request, with f16 {tried.f16_s:.2f} s"
    if is_clearly_faster(tried.q8_0_s, tried.f16_s):
        if not tried.confirmed:
            return KvType("f16", f"not measured twice, as for a q8_0 that looks faster: {told}")
        return KvType("q8_0", f"faster, {told}")
    return KvType("f16", f"it fits, and q8_0 is not clearly faster, {told}")


def shortage_of_f16(facts: GgufFacts, wish: KvWish, slots: int, available_bytes: int) -> str:
    """What `available_bytes` do not give of the wish with f16; empty: all fits.

    `slots` for a wish that names none. With a context in the wish the memory must hold all of
    it; else the engine takes its share of what is free, which should be the usual context.
    """
    shape, slots = facts.kv_shape("f16"), wish.slots or slots
    if wish.context_tokens is not None:
        wanted = wish.context_tokens
        plan = plan_kv(FitRequest(shape, facts.file_bytes, available_bytes, slots, wanted))
        if (plan.slots, plan.context_tokens) == (slots, wanted):
            return ""
        room = f"{plan.slots} sequences of {plan.context_tokens} tokens"
        return f"f16 has room for {room}, not for {slots} of {wanted}"
    trained = facts.context_tokens
    wanted = min(USUAL_CONTEXT_TOKENS, trained)
    given = default_context_tokens(available_bytes, shape.bytes_per_token, slots, trained)
    return "" if given >= wanted else f"f16 leaves {given} tokens, not {wanted}, to each of {slots}"
