"""`[[hosted]]` tables: which models the fleet serves itself on cloud nodes, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.gguf import GgufError
from shoal.gguf_facts import scan
from shoal.hosted import DEFAULT_CONTEXT_TOKENS, DEFAULT_SLOTS, NAME, HostedModel, size
from shoal.model_names import catalogue_name
from shoal.settings_table import SettingError, Table, tables

# Least and most.
_WHOLE = {
    "num_parameters": (1, 10**15), "slots": (1, 4_096), "context_tokens": (256, 2**31 - 1),
    "cpus": (0, 4_096), "min_replicas": (0, 10_000), "max_replicas": (1, 10_000),
}  # fmt: skip
_SECONDS = ("idle_s", "cold_start_s")
_FIELDS = {"file", "name", "url", "own", *_WHOLE, *_SECONDS}


def hosted_models(rows: object, folder: Path) -> tuple[HostedModel, ...]:
    """The models of the tables; files are looked up in `folder` and read. Raises SettingError."""
    models = tuple(_hosted_model(row, folder) for row in tables(rows, "hosted"))
    if len({model.name for model in models}) < len(models):
        raise SettingError("hosted: two tables have the same 'name'; give each its own.")
    return models


def _hosted_model(row: object, folder: Path) -> HostedModel:
    table = Table(row, "hosted", _FIELDS)
    file = (folder / Path(table.text("file")).expanduser()).absolute()
    name = table.text("name", catalogue_name(file))
    if not NAME.fullmatch(name):
        raise table.fails("name", f"of letters, digits, '.', '_' and '-', which {name!r} is not")
    table.where = f"hosted {name}"
    whole: dict[str, Any] = {
        each: table.whole(each, None, *_WHOLE[each]) for each in _WHOLE if each in table
    }
    seconds: dict[str, Any] = {
        each: table.seconds(each, 0.0, least=1.0) for each in _SECONDS if each in table
    }
    if whole.get("min_replicas", 0) > whole.get("max_replicas", 1):
        raise SettingError(f"{table.where}: 'min_replicas' is above 'max_replicas'.")
    url, own = table.url("url") if "url" in table else "", table.flag("own")
    try:
        facts = scan(file)
    except (GgufError, OSError) as error:
        raise SettingError(f"hosted: {file} cannot be served: {error}") from error
    slots = whole.pop("slots", DEFAULT_SLOTS)
    context = whole.pop("context_tokens", min(DEFAULT_CONTEXT_TOKENS, facts.context_tokens))
    memory_bytes, cache_bytes = size(facts, slots, context)
    whole.setdefault("num_parameters", facts.num_parameters)
    return HostedModel(
        name=name,
        file=str(file),
        context_tokens=context,
        memory_bytes=memory_bytes,
        cache_bytes=cache_bytes,
        slots=slots,
        url=url,
        own=own,
        **whole,
        **seconds,
    )
