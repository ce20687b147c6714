"""How long a device may be silent, from what it was predicted to do.

    first token:  min(max(floor, 4 x TTFT), max(cap, 1.5 x TTFT))
    next token:   min(max(floor, 15 x TPOT + 2 x prefill), max(cap, 1.5 x prefill))

The TTFT is predicted as if nothing were cached, since a cache may have forgotten. The
prefill is what an engine may compute of waiting prompts before it goes on with running
sequences. The cap never cuts below one and a half predictions: a
long prompt on a slow device is not a fault. Silence counts from the last token of *any*
request of the model on the device, so a busy device is not suspected for its queue.
"""

from __future__ import annotations

from orchestrator.config import HealthTerms

# What is allowed of a prediction in any case.
_AT_LEAST = 1.5


def first_token_bound_ms(terms: HealthTerms, ttft_ms: float, *, proven: bool) -> float:
    """Allowed silence of a device that accepted a request with this predicted TTFT.

    `proven`: the device finished a request for the model before.
    """
    floor_ms = terms.first_token_floor_ms
    if not proven:
        floor_ms = max(floor_ms, terms.unproven_floor_ms)
    bound_ms = max(floor_ms, terms.first_token_factor * ttft_ms)
    return min(bound_ms, max(terms.bound_cap_ms, _AT_LEAST * ttft_ms))


def next_token_bound_ms(terms: HealthTerms, tpot_ms: float, prefill_ms: float) -> float:
    """Allowed silence of a device with a running stream and `prefill_ms` of prefill between."""
    bound_ms = terms.next_token_factor * tpot_ms + terms.next_prefill_factor * prefill_ms
    bound_ms = max(terms.next_token_floor_ms, bound_ms)
    return min(bound_ms, max(terms.bound_cap_ms, _AT_LEAST * prefill_ms))


def duration_text(ms: float) -> str:
    """A duration to read: `3.2 s`, or `20 ms` below a tenth of a second."""
    return f"{ms / 1000:.1f} s" if ms >= 100 else f"{ms:.0f} ms"
