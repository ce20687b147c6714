"""What tokens cost; pure. Money is counted in whole billionths (nanos) of the currency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from shoal.settings_table import SettingError, Table

NANOS = 10**9
_TOKENS_PER_PRICE = 1_000_000
PRICE_FIELDS = ("input_per_million", "output_per_million")


@dataclass(frozen=True, slots=True)
class Price:
    """Currency for a million tokens, of the prompt and of the answer."""

    input_per_million: Decimal
    output_per_million: Decimal

    def cost_nanos(self, prompt_tokens: int, completion_tokens: int) -> int:
        """The cost, rounded up, for a budget must not be passed by rounding."""
        cost = prompt_tokens * self.input_per_million + completion_tokens * self.output_per_million
        nanos = cost * NANOS / _TOKENS_PER_PRICE
        return int(nanos.to_integral_value(rounding=ROUND_CEILING))


def dearest_nanos(
    prices: Sequence[Price | None], prompt_tokens: int, completion_tokens: int
) -> int | None:
    """What the tokens cost at most; None when a price is not stated."""
    costs = [
        None if price is None else price.cost_nanos(prompt_tokens, completion_tokens)
        for price in prices
    ]
    known = [cost for cost in costs if cost is not None]
    return max(known, default=0) if len(known) == len(costs) else None


def price_of(table: Table) -> Price | None:
    """The price that a table of the configuration states; None: it states none.

    Raises SettingError with what to change.
    """
    given = [each for each in PRICE_FIELDS if each in table]
    if not given:
        return None
    if len(given) < len(PRICE_FIELDS):
        raise SettingError(f"{table.where}: {' and '.join(PRICE_FIELDS)} are needed together.")
    # By way of the text: 0.1 is meant as it was written.
    return Price(*(Decimal(str(table.number(each, 0.0, 0.0, 1e6))) for each in PRICE_FIELDS))
