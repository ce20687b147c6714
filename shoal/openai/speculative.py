"""How a sequence was drafted and verified, as responses and records tell it."""

from __future__ import annotations

from typing import Any

from shoal.openai.tier_use import TierUse
from shoal.v1 import inference_pb2 as pb


def speculative_fields(finished: pb.Finished) -> dict[str, Any]:
    """`{"speculative": {...}}`, or nothing for a sequence that no verifier was named for."""
    if not finished.HasField("speculated"):
        return {}
    told = finished.speculated
    drafted = told.drafted_tokens
    return {
        "speculative": {
            "mode": told.mode,
            "target": told.target,
            "acceptance_rate": round(told.accepted_tokens / drafted, 3) if drafted else None,
            "rounds": told.rounds,
            "drafted_tokens": drafted,
            "accepted_tokens": told.accepted_tokens,
            "target_passes": told.target_passes,
            "tokens_by_tier": dict(told.tokens_by_tier),
            "round_trip_ms": round(told.round_trip_ms, 1),
            "fallback": told.fallback,
            "because": told.because,
        }
    }


def drafted_uses(finished: pb.Finished) -> dict[str, TierUse]:
    """Tokens of a drafted sequence by who they come from; a tier that gave none is left out.

    Drafts that stood are the edge's. Both tiers computed the prompt.
    """
    prompt = finished.usage.prompt_tokens
    tiers = finished.speculated.tokens_by_tier
    return {tier: TierUse(prompt, count) for tier, count in sorted(tiers.items()) if count}
