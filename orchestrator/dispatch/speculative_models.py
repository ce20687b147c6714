"""Models of a cloud node that devices draft for, as configured; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.v1 import inference_pb2 as pb

FALLBACKS = {
    "edge": pb.SPECULATION_FALLBACK_EDGE,
    "cloud": pb.SPECULATION_FALLBACK_CLOUD,
}
_FIELDS = {"name", "draft", "verifier", "fallback", "timeout_s"}


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


def drafted_models(rows: object) -> tuple[DraftedModel, ...]:
    """The `[[drafted]]` tables of the cloud's configuration. Raises ValueError."""
    if not isinstance(rows, list):
        raise ValueError("'drafted' must be a list of tables.")
    models = tuple(_drafted_model(row) for row in rows)
    if len({model.name for model in models}) < len(models):
        raise ValueError("drafted: two tables have the same 'name'.")
    return models


def _drafted_model(row: Any) -> DraftedModel:
    if not isinstance(row, dict) or not set(row) <= _FIELDS:
        raise ValueError(f"drafted: a table with {', '.join(sorted(_FIELDS))} is needed.")
    for name in ("name", "draft", "verifier"):
        if not isinstance(row.get(name), str) or not row[name]:
            raise ValueError(f"drafted: '{name}' must be a string that is not empty.")
    timeout_s = row.get("timeout_s", 10.0)
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or timeout_s <= 0:
        raise ValueError("drafted: 'timeout_s' must be a number above 0.")
    if row.get("fallback", "edge") not in FALLBACKS:
        raise ValueError("drafted: 'fallback' must be 'edge' or 'cloud'.")
    if not row["verifier"].rpartition(":")[2].isdigit():
        raise ValueError("drafted: 'verifier' must be host:port.")
    return DraftedModel(
        row["name"],
        row["draft"],
        row["verifier"],
        row.get("fallback", "edge"),
        float(timeout_s),
    )
