"""`[[hosted]]` tables: which models the fleet serves itself on cloud nodes, and how."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.gguf import GgufError
from shoal.gguf_facts import scan
from shoal.hosted import DEFAULT_CONTEXT_TOKENS, DEFAULT_SLOTS, NAME, HostedModel, size
from shoal.model_names import catalogue_name

_WHOLE = {
    "num_parameters": 1, "slots": 1, "context_tokens": 256, "cpus": 0, "min_replicas": 0,
    "max_replicas": 1,
}  # fmt: skip
_SECONDS = ("idle_s", "cold_start_s")
_FIELDS = {"file", "name", "url", "own", *_WHOLE, *_SECONDS}


def hosted_models(rows: object, folder: Path) -> tuple[HostedModel, ...]:
    """The models of the tables; files are looked up in `folder` and read. Raises ValueError."""
    if not isinstance(rows, list):
        raise ValueError("'hosted' must be a list of tables.")
    models = tuple(_hosted_model(row, folder) for row in rows)
    if len({model.name for model in models}) < len(models):
        raise ValueError("hosted: two tables have the same 'name'; give each its own.")
    return models


def _hosted_model(row: Any, folder: Path) -> HostedModel:
    if not isinstance(row, dict) or not set(row) <= _FIELDS:
        raise ValueError(f"hosted: a table of {', '.join(sorted(_FIELDS))} is needed.")
    if not isinstance(row.get("file"), str) or not row["file"]:
        raise ValueError("hosted: 'file' must name a GGUF file.")
    file = (folder / Path(row["file"]).expanduser()).absolute()
    name, url = row.get("name", catalogue_name(file)), row.get("url", "")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"hosted: 'name' {name!r} must be of letters, digits, '.', '_' and '-'.")
    own = row.get("own", False)
    if not isinstance(own, bool):
        raise ValueError(f"hosted {name}: 'own' must be true or false.")
    if not isinstance(url, str):
        raise ValueError(f"hosted {name}: 'url' must be the address of that cluster's Serve.")
    try:
        facts = scan(file)
    except (GgufError, OSError) as error:
        raise ValueError(f"hosted: {file} cannot be served: {error}") from error
    given = _numbers(row, name)
    slots = given.pop("slots", DEFAULT_SLOTS)
    context = given.pop("context_tokens", min(DEFAULT_CONTEXT_TOKENS, facts.context_tokens))
    memory_bytes, cache_bytes = size(facts, slots, context)
    given.setdefault("num_parameters", facts.num_parameters)
    if given.get("min_replicas", 0) > given.get("max_replicas", 1):
        raise ValueError(f"hosted {name}: 'min_replicas' is above 'max_replicas'.")
    return HostedModel(
        name=name,
        file=str(file),
        context_tokens=context,
        memory_bytes=memory_bytes,
        cache_bytes=cache_bytes,
        slots=slots,
        url=url.rstrip("/"),
        own=own,
        **given,
    )


def _numbers(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The table's numbers, checked."""
    for field in (*_WHOLE, *_SECONDS):
        value = row.get(field)
        if value is None:
            continue
        kind = int if field in _WHOLE else int | float
        if isinstance(value, bool) or not isinstance(value, kind):
            raise ValueError(f"hosted {name}: '{field}' must be a number.")
        if value < _WHOLE.get(field, 1):
            raise ValueError(f"hosted {name}: '{field}' must be {_WHOLE.get(field, 1)} or more.")
    return {field: row[field] for field in (*_WHOLE, *_SECONDS) if field in row}
