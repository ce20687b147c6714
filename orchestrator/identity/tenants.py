"""What a tenant may do and wants: how far its prompts travel, what it spends, how fast it asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from orchestrator.request import Objective, Privacy


@dataclass(frozen=True, slots=True)
class Budgets:
    """Limits of a tenant's use of the cloud in a UTC day and calendar month; None: no limit.

    Money in billionths of the fleet's currency.
    """

    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    nanos_per_day: int | None = None
    nanos_per_month: int | None = None

    @property
    def any(self) -> bool:
        """Whether there is a limit at all."""
        return self != Budgets()


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a tenant may ask (None: no limit), and its weight when requests have to wait."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds for a tenant's requests that do not say; None: as the fleet is set."""

    objective: Objective | None = None
    hedge_after: float | None = None


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """One tenant's stored policy."""

    privacy: Privacy
    budgets: Budgets = field(default_factory=Budgets)
    rates: Rates = field(default_factory=Rates)
    defaults: Defaults = field(default_factory=Defaults)


@dataclass(frozen=True, slots=True)
class Period:
    """A UTC day or month: `name` as in counters' keys, and when the next one begins."""

    name: str
    ends_unix_s: int


def day_of(unix_s: float) -> Period:
    """The UTC day."""
    start = datetime.fromtimestamp(unix_s, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return Period(start.strftime("%Y-%m-%d"), int((start + timedelta(days=1)).timestamp()))


def month_of(unix_s: float) -> Period:
    """The UTC calendar month."""
    start = datetime.fromtimestamp(unix_s, UTC).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    following = (start + timedelta(days=32)).replace(day=1)
    return Period(start.strftime("%Y-%m"), int(following.timestamp()))


def policy_fields(policy: TenantPolicy) -> dict[str, str]:
    """The policy as a hash of texts; what is not set is left out."""
    limits = {name: getattr(policy.budgets, name) for name in Budgets.__slots__}
    limits |= {name: getattr(policy.rates, name) for name in Rates.__slots__}
    limits |= {name: getattr(policy.defaults, name) for name in Defaults.__slots__}
    texts = {name: str(limit) for name, limit in limits.items() if limit is not None}
    return {"privacy": policy.privacy.value, **texts}


def policy_from(fields: Mapping[str, str]) -> TenantPolicy | None:
    """The stored policy; None when there is none, or none that this version understands."""
    try:
        limits = {name: int(fields[name]) for name in Budgets.__slots__ if name in fields}
        rates = {name: float(fields[name]) for name in Rates.__slots__ if name in fields}
        objective, hedge_after = fields.get("objective"), fields.get("hedge_after")
        defaults = Defaults(
            None if objective is None else Objective(objective),
            None if hedge_after is None else float(hedge_after),
        )
        privacy = Privacy(fields["privacy"])
        return TenantPolicy(privacy, Budgets(**limits), Rates(**rates), defaults)
    except (KeyError, ValueError):
        return None
