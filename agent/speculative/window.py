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


def least_chance(costs: RoundCosts, tokens_per_s: float) -> float:
    """The chance to stand from which one more draft is worth its time, at this pace.

    A draft yields as many tokens as its chance, and takes what it and its row in the pass take,
    in which time the rounds yield so many tokens anyway.
    """
    return min(1.0, (costs.draft_ms + costs.pass_row_ms) * tokens_per_s / 1e3)


def chance_of(sureness: float) -> float:
    """That a greedy draft stands, by its probability under the draft model.

    Measured for a 135M model's Q4_0 against its Q8_0: 0.42 where the draft gave 0.1, 0.65 at
    0.25, 0.8 at 0.45, 0.93 at 0.55; the cube root is within 0.1 of all of them.
    """
    return float(max(0.0, min(1.0, sureness)) ** (1 / 3))
