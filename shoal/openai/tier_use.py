"""What an answer used of one tier: tokens, money, and what was odd about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NANOS = 10**9


@dataclass(frozen=True, slots=True)
class TierUse:
    """Tokens and money; `cost_nanos` (billionths of `currency`) None: the price is unknown."""

    prompt_tokens: int
    completion_tokens: int
    cost_nanos: int | None = None
    currency: str = ""
    flags: tuple[str, ...] = ()

    def plus(self, other: TierUse) -> TierUse:
        """Both together; an unknown cost makes the sum unknown."""
        known = self.cost_nanos is not None and other.cost_nanos is not None
        return TierUse(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            (self.cost_nanos or 0) + (other.cost_nanos or 0) if known else None,
            self.currency or other.currency,
            tuple(dict.fromkeys((*self.flags, *other.flags))),
        )


def tokens_by_tier(uses: Mapping[str, TierUse]) -> dict[str, Any]:
    """Tokens by tier, as answers and records show them."""
    return {
        tier: {"prompt": use.prompt_tokens, "completion": use.completion_tokens}
        for tier, use in uses.items()
    }


def money_by_tier(uses: Mapping[str, TierUse]) -> dict[str, Any]:
    """Money by tier, as answers and records show it; tiers without a known price are left out."""
    return {
        tier: {"amount": use.cost_nanos / _NANOS, "currency": use.currency}
        for tier, use in uses.items()
        if use.cost_nanos is not None
    }


def usage_flags(uses: Mapping[str, TierUse]) -> list[str]:
    """What was odd about the usage that endpoints reported."""
    return list(dict.fromkeys(flag for use in uses.values() for flag in use.flags))
