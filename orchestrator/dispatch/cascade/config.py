"""The tables `[[cascade]]` of the cloud's configuration; pure."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from orchestrator.dispatch.cascade.policy import AUTO, DELIVERIES, CascadePolicy
from shoal.settings_table import SettingError, Table, tables

_TYPES = {each.name: each.type for each in fields(CascadePolicy)}
_MOST_TOKENS = 1_000_000


def cascade_policies(rows: object) -> tuple[CascadePolicy, ...]:
    """The policies; raises SettingError with what to change, also for unknown names."""
    policies = tuple(_policy(row) for row in tables(rows, "cascade"))
    if len({each.name for each in policies}) < len(policies):
        raise SettingError("two cascades have the same name; give each its own.")
    return policies


def _policy(row: object) -> CascadePolicy:
    table = Table(row, "cascade", _TYPES)
    policy = CascadePolicy(**{name: _value(table, name) for name in _TYPES if name in table})
    edge = policy.edge or ("" if policy.name == AUTO else policy.name)
    if edge in policy.escalate_to:
        raise table.fails("escalate_to", f"other models than '{edge}', which answers first")
    return policy


def _value(table: Table, name: str) -> Any:
    """By the type of the policy's field; numbers are seconds (`_s`) or shares."""
    if name == "escalate_to":
        return table.texts(name)
    if name == "delivery":
        return table.choice(name, DELIVERIES)
    if _TYPES[name] == "str":
        return table.text(name)
    if _TYPES[name] == "int":
        return table.whole(name, None, 1, _MOST_TOKENS)
    if _TYPES[name] == "bool":
        return table.flag(name)
    return table.seconds(name, 0.0) if name.endswith("_s") else table.number(name, 0.0, 0.0, 1.0)
