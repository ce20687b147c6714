"""Models of a cloud node that devices draft for, as configured; pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.dispatch.prices import PRICE_FIELDS, Price, price_of
from shoal.settings_table import SettingError, Table, tables
from shoal.v1 import inference_pb2 as pb

FALLBACKS = {
    "edge": pb.SPECULATION_FALLBACK_EDGE,
    "cloud": pb.SPECULATION_FALLBACK_CLOUD,
}
_FIELDS = {"name", "draft", "verifier", "fallback", "timeout_s", *PRICE_FIELDS}


@dataclass(frozen=True, slots=True)
class DraftedModel:
    """`name` is what clients ask for and what the node serves; `draft` is the devices' model."""

    name: str
    draft: str
    # host:port that devices dial.
    verifier: str
    fallback: str = "edge"
    # A verifier that is silent for longer is given up.
    timeout_s: float = 10.0
    # Of what the node gives; None: not stated, and closed to budgets of money.
    price: Price | None = None


def drafted_models(rows: object) -> tuple[DraftedModel, ...]:
    """The `[[drafted]]` tables of the cloud's configuration. Raises SettingError."""
    models = tuple(_drafted_model(row) for row in tables(rows, "drafted"))
    if len({model.name for model in models}) < len(models):
        raise SettingError("drafted: two tables have the same 'name'.")
    return models


def _drafted_model(row: object) -> DraftedModel:
    table = Table(row, "drafted", _FIELDS)
    name = table.text("name")
    table.where = f"drafted {name}"
    draft = table.text("draft")
    if draft == name:
        raise table.fails("draft", "another model than 'name', and a smaller one")
    return DraftedModel(
        name,
        draft,
        table.address("verifier"),
        table.choice("fallback", tuple(FALLBACKS), "edge"),
        table.seconds("timeout_s", 10.0),
        price_of(table),
    )
