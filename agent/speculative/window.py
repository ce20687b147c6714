"""How many tokens to draft, and whether drafting pays at all. Pure; times in ms.

One round drafts k tokens, sends them, waits for one pass of the target over k + 1 rows,
and yields the accepted ones and one of the target's own. By itself the target yields one
token a pass, without waiting for the network in between: it streams.
"""

from __future__ import annotations

from dataclasses import dataclass

# A longer draft hardly ever stands whole, and a device would be kept from other work.
LONGEST_DRAFT = 16


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """What a round's parts take; a pass is `pass_base_ms + rows * pass_row_ms`."""

    draft_ms: float
    round_trip_ms: float
    pass_base_ms: float
    pass_row_ms: float
    # The target by itself, a token.
    alone_ms: float

    def round_ms(self, num_drafted: int) -> float:
        """One round, from its first drafted token to its verdict."""
        rows = num_drafted + 1
        return (
            num_drafted * self.draft_ms
            + self.round_trip_ms
            + self.pass_base_ms
            + rows * self.pass_row_ms
        )


def expected_tokens(num_drafted: int, acceptance: float) -> float:
    """Tokens that a round yields: (1 - a^(k+1)) / (1 - a) (Leviathan et al., 2023, eq. 1)."""
    if acceptance >= 1.0:
        return num_drafted + 1.0
    return float((1.0 - acceptance ** (num_drafted + 1)) / (1.0 - acceptance))


@dataclass(frozen=True, slots=True)
class Choice:
    """The best window, 0: the target by itself; and what each of the two is worth."""

    num_drafted: int
    # Of the best window above 0, and of the target by itself; tokens a second.
    drafting_per_s: float
    alone_per_s: float

    @property
    def because(self) -> str:
        """The comparison in words."""
        verb = "pays" if self.num_drafted else "does not pay"
        return (
            f"Drafting {verb}: {self.drafting_per_s:.1f} tokens/s expected, "
            f"the target alone {self.alone_per_s:.1f}."
        )


def choose_window(costs: RoundCosts, acceptance: float, longest: int = LONGEST_DRAFT) -> Choice:
    """The window with the most expected tokens a second; drafting must beat the target alone."""
    best, best_per_s = 1, 0.0
    for num_drafted in range(1, longest + 1):
        per_s = 1e3 * expected_tokens(num_drafted, acceptance) / costs.round_ms(num_drafted)
        if per_s > best_per_s:
            best, best_per_s = num_drafted, per_s
    alone_per_s = 1e3 / costs.alone_ms
    return Choice(best if best_per_s > alone_per_s else 0, best_per_s, alone_per_s)
