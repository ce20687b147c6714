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
    """What a round's parts take."""

    draft_ms: float
    round_trip_ms: float
    # Of a pass over 1, 2, ... LONGEST_DRAFT + 1 rows.
    pass_ms: tuple[float, ...]
    # The target by itself, a token.
    alone_ms: float

    def round_ms(self, num_drafted: int) -> float:
        """One round, from its first drafted token to its verdict."""
        return num_drafted * self.draft_ms + self.round_trip_ms + self.pass_ms[num_drafted]

    @property
    def row_ms(self) -> float:
        """What one more row takes in a pass over several, on average."""
        return max(0.0, self.pass_ms[-1] - self.pass_ms[1]) / (len(self.pass_ms) - 2)


def expected_tokens(num_drafted: int, acceptance: float) -> float:
    """Tokens that a round yields: (1 - a^(k+1)) / (1 - a) (Leviathan et al., 2023, eq. 1)."""
    if acceptance >= 1.0:
        return num_drafted + 1.0
    return float((1.0 - acceptance ** (num_drafted + 1)) / (1.0 - acceptance))


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do, and what it and its alternative are worth."""

    # 0: the target by itself.
    num_drafted: int
    # The best window above 0, also where drafting does not pay.
    best_drafted: int
    # Of the best window above 0, and of the target by itself; tokens a second.
    drafting_per_s: float
    alone_per_s: float

    def loss_ms(self, acceptance: float) -> float:
        """What a round of the best window takes beyond the target alone, for as many tokens."""
        tokens = expected_tokens(self.best_drafted, acceptance)
        return max(0.0, 1e3 * tokens * (1 / self.drafting_per_s - 1 / self.alone_per_s))

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
    pays = best_per_s > alone_per_s
    return Choice(best if pays else 0, best, best_per_s, alone_per_s)


def least_chance(costs: RoundCosts, tokens_per_s: float) -> float:
    """The chance to stand from which one more draft is worth its time, at this pace.

    A draft yields as many tokens as its chance, and takes what it and its row in the pass take,
    in which time the rounds yield so many tokens anyway.
    """
    return min(1.0, (costs.draft_ms + costs.row_ms) * tokens_per_s / 1e3)


def supposed_chance(sureness: float) -> float:
    """That a draft stands, by its probability under the draft model, before rounds taught it.

    A guess, higher than the probability itself: a smaller variant of the same model mostly
    agrees with it where it is unsure too. Some twenty rounds replace it.
    """
    return float(max(0.0, min(1.0, sureness)) ** (1 / 3))
