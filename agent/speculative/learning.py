"""What rounds teach: acceptance, and what drafts, the network and the target take. Pure."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agent.speculative.window import (
    LONGEST_DRAFT,
    Choice,
    RoundCosts,
    choose_window,
    least_chance,
    supposed_chance,
)

# Old rounds count half after some twenty new ones: texts and networks change.
_KEEP = 0.97
# Beyond the widths that were seen a row is supposed to cost a tenth of a pass over one: too
# little rather than too much, for a width that is tried is then measured.
_ROW_SHARE = 0.1
# An acceptance known before anything was seen, and how many drafts that is worth.
_FIRST_ACCEPTANCE, _FIRST_TRIALS = 0.7, 4.0
# Between these probabilities drafts are counted as equally sure.
_SURENESS = (0.1, 0.2, 0.3, 0.45, 0.6, 0.8)
# How many drafts' worth a new request takes over from those before it.
_INHERITED_TRIALS = 12.0
# What trial rounds may take of the time where drafting does not pay, and how long one waits at
# most, since what was seen last may have been a moment's.
_TRIAL_SHARE, _MOST_WAIT_MS = 0.04, 60_000.0


class Average:
    """A mean that forgets slowly."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    @property
    def known(self) -> bool:
        """Whether anything was seen."""
        return self._weight > 0

    @property
    def value(self) -> float:
        """The mean; only where something is known."""
        return self._sum / self._weight

    def see(self, value: float, weight: float = 1.0) -> None:
        """Count one value."""
        self._sum = _KEEP * self._sum + weight * value
        self._weight = _KEEP * self._weight + weight


class Acceptance:
    """The chance that a draft stands, given that those before it do."""

    def __init__(self, first: float = _FIRST_ACCEPTANCE, trials: float = _FIRST_TRIALS) -> None:
        self._stood, self._tried = first * trials, trials

    @property
    def value(self) -> float:
        """The estimate, between 0 and 1."""
        return self._stood / self._tried

    def see(self, num_drafted: int, num_accepted: int) -> None:
        """Count a round: what follows the first that fell was never tried."""
        tried = num_accepted + (num_accepted < num_drafted)
        self._stood = _KEEP * self._stood + num_accepted
        self._tried = _KEEP * self._tried + tried

    def inherited(self) -> Acceptance:
        """A fresh one for another request, which starts from what is known here."""
        return Acceptance(self.value, min(self._tried, _INHERITED_TRIALS))


class Sureness:
    """The chance that a draft stands, by how sure the draft model was of it."""

    def __init__(self) -> None:
        bounds = zip((0.0, *_SURENESS), (*_SURENESS, 1.0), strict=True)
        self._steps = [
            Acceptance(supposed_chance((low + high) / 2), _FIRST_TRIALS) for low, high in bounds
        ]

    def chance(self, sureness: float) -> float:
        """The estimate, between 0 and 1."""
        return self._steps[bisect(_SURENESS, sureness)].value

    def see(self, sureness: Sequence[float], num_accepted: int) -> None:
        """Count a round's drafts: what follows the first that fell was never tried."""
        for place, sure in enumerate(sureness[: num_accepted + 1]):
            self._steps[bisect(_SURENESS, sure)].see(1, int(place < num_accepted))


class PassTimes:
    """What passes over different numbers of rows take: seldom a straight line.

    Some kernels take several rows at the price of one, others compute them one by one.
    """

    def __init__(self) -> None:
        self._seen: dict[int, Average] = {}

    @property
    def known(self) -> bool:
        """Whether a pass was seen."""
        return bool(self._seen)

    def see(self, num_rows: int, pass_ms: float) -> None:
        """Count one pass."""
        self._seen.setdefault(num_rows, Average()).see(pass_ms)

    def table(self, longest: int) -> tuple[float, ...]:
        """ms of passes over 1 to `longest` rows; straight lines between those that were seen.

        No pass takes longer than one that was seen over more rows.
        """
        seen = sorted(self._seen)
        values = [self._seen[rows].value for rows in seen]
        values = [min(values[place:]) for place in range(len(values))]
        narrowest, widest = seen[0], seen[-1]
        one = values[0] / (1.0 + _ROW_SHARE * (narrowest - 1))
        if narrowest > 1:
            seen, values = [1, *seen], [one, *values]
        if widest < longest:
            seen.append(longest)
            values.append(values[-1] + _ROW_SHARE * one * (longest - widest))
        return tuple(np.interp(np.arange(1, longest + 1), seen, values).tolist())


@dataclass(frozen=True, slots=True)
class Round:
    """One round as it was; `wall_ms` from sending to the verdict."""

    num_drafted: int
    num_accepted: int
    draft_ms: float
    wall_ms: float
    pass_ms: float
    num_rows: int
    # The draft model's probability of each draft.
    sureness: tuple[float, ...] = ()


class Trials:
    """When a round is tried although drafting does not pay, which alone tells whether it would.

    A trial waits until what it loses is a small share of the time since the last one, in all
    requests together: so the rule costs little where it is right to leave drafting off.
    """

    def __init__(self) -> None:
        self._since_ms = 0.0

    def see_alone(self, pass_ms: float) -> None:
        """Count the time of a token that the target made by itself."""
        self._since_ms += pass_ms

    def due_in_ms(self, loss_ms: float) -> float:
        """The target's time by itself before the next trial, which loses so much; 0: now."""
        return max(0.0, min(loss_ms / _TRIAL_SHARE, _MOST_WAIT_MS) - self._since_ms)

    def begin(self) -> None:
        """A trial is made."""
        self._since_ms = 0.0


class Profile:
    """What is known of one verifier's model, from all requests; shared between them."""

    def __init__(self) -> None:
        self.acceptance = Acceptance()
        self.round_trip = Average()
        self.draft = Average()
        self.passes = PassTimes()
        self.sureness = Sureness()
        self.trials = Trials()
        self._alone = Average()

    def see_round(self, seen: Round) -> None:
        """Learn from a round of drafts."""
        self.acceptance.see(seen.num_drafted, seen.num_accepted)
        self.sureness.see(seen.sureness, seen.num_accepted)
        self.draft.see(seen.draft_ms / seen.num_drafted)
        self.round_trip.see(max(0.0, seen.wall_ms - seen.pass_ms))
        self.passes.see(seen.num_rows, seen.pass_ms)

    def see_alone(self, pass_ms: float) -> None:
        """Learn from a pass of the target by itself, or from its own word at the start."""
        self._alone.see(pass_ms)
        self.passes.see(1, pass_ms)
        self.trials.see_alone(pass_ms)

    def costs(self) -> RoundCosts | None:
        """None until drafts, the network and the target were all seen."""
        if not (self.draft.known and self.round_trip.known and self.passes.known):
            return None
        pass_ms = self.passes.table(LONGEST_DRAFT + 1)
        alone_ms = self._alone.value if self._alone.known else pass_ms[0]
        return RoundCosts(self.draft.value, self.round_trip.value, pass_ms, max(alone_ms, 1e-3))


# Drafts of the first round, when nothing is known.
_FIRST_WINDOW = 4
# Tokens that the target makes by itself before the question is asked again.
_MOST_ALONE = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do next: draft so many, or with 0 let the target make `num_alone` by itself."""

    num_drafted: int
    num_alone: int
    because: str
    # The round ends before a draft that stands, with those before it, by less than this chance.
    least_chance: float = 0.0


class Window:
    """Plans one request's rounds, from its own acceptance and the verifier's profile."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._acceptance = profile.acceptance.inherited()
        self.choice: Choice | None = None

    @property
    def acceptance(self) -> float:
        """The request's own estimate."""
        return self._acceptance.value

    def chance_of(self, sureness: float) -> float:
        """That a draft stands of which the draft model was so sure."""
        return self._profile.sureness.chance(sureness)

    def plan(self) -> Plan:
        """The next step. Where drafting does not pay a round is tried now and then (`Trials`)."""
        costs = self._profile.costs()
        if costs is None:
            return Plan(_FIRST_WINDOW, 0, "Nothing was measured yet.")
        self.choice = choice = choose_window(costs, self._acceptance.value)
        least = least_chance(costs, choice.drafting_per_s)
        if choice.num_drafted:
            return Plan(LONGEST_DRAFT, 0, choice.because, least)
        trials = self._profile.trials
        due_in_ms = trials.due_in_ms(choice.loss_ms(self._acceptance.value))
        if due_in_ms > 0:
            num_alone = math.ceil(due_in_ms / costs.alone_ms)
            return Plan(0, min(num_alone, _MOST_ALONE), choice.because)
        trials.begin()
        # As if it paid: only such a round tells whether it would.
        because = f"{choice.because} One round tries whether that is still so."
        return Plan(choice.best_drafted, 0, because, least)

    def see_round(self, seen: Round) -> None:
        """Learn from a round of drafts."""
        self._acceptance.see(seen.num_drafted, seen.num_accepted)
        self._profile.see_round(seen)

    def see_alone(self, pass_ms: float, wall_ms: float | None = None) -> None:
        """Learn from a token that the target made by itself.

        `wall_ms`: from sending to the token, of a stretch's first one.
        """
        self._profile.see_alone(pass_ms)
        if wall_ms is not None:
            self._profile.round_trip.see(max(0.0, wall_ms - pass_ms))
