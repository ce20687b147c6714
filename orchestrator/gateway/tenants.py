"""Tenants' policies through the admin API: privacy, budgets, rates, defaults, what was spent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.identity.tenants import Budgets, Defaults, Rates, TenantPolicy
from orchestrator.identity.tenants_redis import TenantStore
from orchestrator.request import Objective, Privacy
from shoal.errors import Reason, ShoalError, invalid
from shoal.openai.extension import MAX_HEDGE_AFTER
from shoal.openai.fields import Fields

_NANOS = 10**9
_MAX_TOKENS = 10**15
# Counters stay exact to here.
_MAX_MONEY = 9_000_000.0
_MAX_PER_MINUTE = 1e12
_MIN_WEIGHT, _MAX_WEIGHT = 0.01, 100.0
_RATES = ("requests_per_minute", "tokens_per_minute", "weight")
_BUDGETS = ("tokens_per_day", "tokens_per_month", "money_per_day", "money_per_month")
_DEFAULTS = ("objective", "hedge_after")
_KNOWN = frozenset({"privacy", *_BUDGETS, *_RATES, *_DEFAULTS})


async def put_tenant(store: TenantStore, tenant: str, fields: Fields) -> Mapping[str, Any]:
    """Set a tenant's policy. What is not named is taken away."""
    for name in fields.names():
        if name not in _KNOWN:
            raise invalid(name[:60], f"{name[:60]!a} is unknown. Known: {sorted(_KNOWN)}.")
    privacy = fields.choice("privacy", [level.value for level in Privacy])
    if privacy is None:
        raise invalid("privacy", "'privacy' is needed: any, local_preferred or local_only.")
    budgets = Budgets(
        tokens_per_day=fields.integer("tokens_per_day", 0, _MAX_TOKENS),
        tokens_per_month=fields.integer("tokens_per_month", 0, _MAX_TOKENS),
        nanos_per_day=_nanos(fields.number("money_per_day", 0, _MAX_MONEY)),
        nanos_per_month=_nanos(fields.number("money_per_month", 0, _MAX_MONEY)),
    )
    rates = Rates(
        requests_per_minute=fields.number("requests_per_minute", 0, _MAX_PER_MINUTE),
        tokens_per_minute=fields.number("tokens_per_minute", 0, _MAX_PER_MINUTE),
        weight=fields.number("weight", _MIN_WEIGHT, _MAX_WEIGHT) or 1.0,
    )
    objective = fields.choice("objective", [each.value for each in Objective])
    defaults = Defaults(
        objective=None if objective is None else Objective(objective),
        hedge_after=fields.number("hedge_after", 0.0, MAX_HEDGE_AFTER),
    )
    await store.put(tenant, TenantPolicy(Privacy(privacy), budgets, rates, defaults))
    return await show_tenant(store, tenant)


async def show_tenant(store: TenantStore, tenant: str) -> Mapping[str, Any]:
    """A tenant's policy and what it spent today and this month; MODEL_NOT_FOUND without one."""
    policy = await store.policy(tenant)
    if policy is None:
        raise ShoalError(
            Reason.MODEL_NOT_FOUND,
            f"The tenant {tenant[:63]!a} has no policy: its requests stay in the fleet.",
            param="tenant",
        )
    budgets = policy.budgets
    spent = await store.spent(tenant)
    return {
        "tenant": tenant,
        "privacy": policy.privacy.value,
        "budgets": {
            "tokens_per_day": budgets.tokens_per_day,
            "tokens_per_month": budgets.tokens_per_month,
            "money_per_day": _money(budgets.nanos_per_day),
            "money_per_month": _money(budgets.nanos_per_month),
        },
        "rates": {name: getattr(policy.rates, name) for name in _RATES},
        "defaults": {name: getattr(policy.defaults, name) for name in _DEFAULTS},
        "spent": {
            "tokens_per_day": spent["tokens_per_day"],
            "tokens_per_month": spent["tokens_per_month"],
            "money_per_day": _money(spent["nanos_per_day"]),
            "money_per_month": _money(spent["nanos_per_month"]),
        },
    }


async def list_tenants(store: TenantStore) -> list[Mapping[str, Any]]:
    """Every tenant that has a policy."""
    return [await show_tenant(store, tenant) for tenant in await store.names()]


def _nanos(money: float | None) -> int | None:
    return None if money is None else round(money * _NANOS)


def _money(nanos: int | None) -> float | None:
    return None if nanos is None else nanos / _NANOS
