"""The tables `[[cascade]]` of the cloud's configuration; pure."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from orchestrator.dispatch.cascade.policy import DELIVERIES, CascadePolicy

_SHARES = {"threshold", "audit_share", "explore_share"}
_KNOWN = {each.name for each in fields(CascadePolicy)}


def cascade_policies(rows: object) -> tuple[CascadePolicy, ...]:
    """The policies; raises ValueError with what to change, also for unknown names."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("'cascade' must be a list of tables, [[cascade]].")
    policies = tuple(_policy(row) for row in rows)
    if len({each.name for each in policies}) < len(policies):
        raise ValueError("two cascades have the same name; give each its own.")
    return policies


def _policy(row: dict[str, Any]) -> CascadePolicy:
    policy = CascadePolicy()
    for name, value in row.items():
        policy = replace(policy, **{name: _value(name, value)})
    if policy.delivery not in DELIVERIES:
        raise ValueError(f"cascade: 'delivery' must be one of {', '.join(DELIVERIES)}.")
    return policy


def _value(name: str, value: object) -> Any:
    if name not in _KNOWN:
        raise ValueError(f"cascade: '{name}' is unknown. Known: {', '.join(sorted(_KNOWN))}.")
    if name == "escalate_to":
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            raise ValueError("cascade: 'escalate_to' must be a model's name, or a list of them.")
        return tuple(names)
    if name in ("name", "edge", "delivery"):
        if not isinstance(value, str) or not value:
            raise ValueError(f"cascade: '{name}' must be a string that is not empty.")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"cascade: '{name}' must be a number.")
    if name in _SHARES and not 0 <= value <= 1:
        raise ValueError(f"cascade: '{name}' must be from 0 to 1.")
    if name not in _SHARES and value <= 0:
        raise ValueError(f"cascade: '{name}' must be above 0.")
    return int(value) if name == "hold_tokens" else float(value)
