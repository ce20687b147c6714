"""Cloud endpoints, retries and the detector of personal data, from a TOML or JSON file."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from orchestrator.dispatch.breaker import BreakerLimits
from orchestrator.dispatch.cascade.config import cascade_policies
from orchestrator.dispatch.cascade.policy import CascadePolicy
from orchestrator.dispatch.endpoint import (
    CloudConfig,
    CloudEndpoint,
    CloudModel,
    DetectorSettings,
    RetryLimits,
    Timeouts,
)
from orchestrator.dispatch.prices import Price
from orchestrator.dispatch.speculative_models import DraftedModel, drafted_models
from orchestrator.request import Privacy
from shoal.hosted import HostedModel
from shoal.hosted_tables import hosted_models
from shoal.settings_table import SettingError, Table
from shoal.vllm_models import VllmModel, vllm_models

_Limits = TypeVar("_Limits")

DETECTORS = ("presidio",)
_NOTHING = "needs at least one [[endpoint]], [[drafted]], [[hosted]] or [[vllm]]."
_CURRENCY = re.compile(r"[A-Z]{3}")
_TOP = {
    "endpoint", "currency", "retry", "privacy", "default_max_tokens", "cascade", "drafted",
    "hosted", "vllm",
}  # fmt: skip
_ENDPOINT = {
    "name", "url", "key", "key_file", "key_env", "model", "priority", "weight", "timeouts",
    "breaker", "ca_file", "max_connections",
}  # fmt: skip
_MODEL = {
    "name", "upstream", "num_parameters", "context_tokens", "input_per_million",
    "output_per_million", "priority", "weight",
}  # fmt: skip
_PRIVACY = {"detector", "raises_to", "entities", "min_score", "timeout_s"}


class CloudConfigError(ValueError):
    """The file cannot be used; the message says what to change."""


def load_cloud_config(path: Path) -> CloudConfig:
    """The file's settings; unknown names are refused, for a misspelt limit protects nobody.

    Keys are read here: `key` as given, `key_file` (relative to the config file) or
    `key_env`. Raises CloudConfigError, which never shows a key.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise CloudConfigError(f"{path}: cannot be read: {error}") from error
    try:
        return _config(data, path.parent)
    except (CloudConfigError, SettingError) as error:
        raise CloudConfigError(f"{path}: {error}") from error.__cause__


def _config(data: object, folder: Path) -> CloudConfig:
    rows = data.get("endpoint", []) if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(rows, list):
        raise CloudConfigError(_NOTHING)
    if not any(data.get(name) for name in ("endpoint", "drafted", "hosted", "vllm")):
        raise CloudConfigError(_NOTHING)
    _known(data, _TOP, "the file")
    endpoints = tuple(_endpoint(_table(row, "endpoint"), folder) for row in rows)
    names = [endpoint.name for endpoint in endpoints]
    if len(set(names)) < len(names):
        raise CloudConfigError("two endpoints have the same name; give each its own 'name'.")
    currency = data.get("currency", "USD")
    if not isinstance(currency, str) or not _CURRENCY.fullmatch(currency):
        raise CloudConfigError("'currency' must be three capital letters, as in \"EUR\".")
    return CloudConfig(
        endpoints=endpoints,
        currency=currency,
        retry=_limits(RetryLimits, data.get("retry", {}), "retry"),
        detector=_detector(data["privacy"]) if "privacy" in data else DetectorSettings(),
        default_max_tokens=int(_number(data, "default_max_tokens", 4_096)),
        drafted=_drafted(data.get("drafted", [])),
        cascades=_cascades(data.get("cascade", [])),
        hosted=_hosted(data.get("hosted", []), folder),
        vllm=_vllm(data.get("vllm", [])),
    )


def _cascades(rows: object) -> tuple[CascadePolicy, ...]:
    try:
        return cascade_policies(rows)
    except ValueError as error:
        raise CloudConfigError(str(error)) from error


def _drafted(rows: object) -> tuple[DraftedModel, ...]:
    try:
        return drafted_models(rows)
    except ValueError as error:
        raise CloudConfigError(str(error)) from error


def _hosted(rows: object, folder: Path) -> tuple[HostedModel, ...]:
    try:
        return hosted_models(rows, folder)
    except ValueError as error:
        raise CloudConfigError(str(error)) from error


def _vllm(rows: object) -> tuple[VllmModel, ...]:
    try:
        return vllm_models(rows)
    except ValueError as error:
        raise CloudConfigError(str(error)) from error


def _endpoint(row: Mapping[str, Any], folder: Path) -> CloudEndpoint:
    url = _text(row, "url").rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CloudConfigError(f"endpoint url {url!r} is not an http(s) address.")
    if parts.username or parts.password:
        raise CloudConfigError("an endpoint's url must hold no credentials; use 'key_file'.")
    _known(row, _ENDPOINT, f"endpoint {url}")
    models = row.get("model")
    if not isinstance(models, list) or not models:
        raise CloudConfigError(f"endpoint {url}: needs at least one [[endpoint.model]].")
    return CloudEndpoint(
        name=str(row.get("name") or parts.hostname),
        url=url,
        models=tuple(_model(_table(model, "model")) for model in models),
        key=_key(row, folder),
        priority=_whole(row, "priority", 0),
        weight=_number(row, "weight", 1.0),
        timeouts=_limits(Timeouts, row.get("timeouts", {}), "timeouts"),
        breaker=_limits(BreakerLimits, row.get("breaker", {}), "breaker"),
        ca_file=folder / _text(row, "ca_file") if "ca_file" in row else None,
        max_connections=int(_number(row, "max_connections", 256)),
    )


def _model(row: Mapping[str, Any]) -> CloudModel:
    name = _text(row, "name")
    _known(row, _MODEL, f"model {name}")
    num_parameters = row.get("num_parameters")
    if not isinstance(num_parameters, int) or num_parameters <= 0:
        raise CloudConfigError(f"model {name}: needs num_parameters, a whole number above 0.")
    return CloudModel(
        name=name,
        upstream=str(row.get("upstream") or name),
        num_parameters=num_parameters,
        context_tokens=_whole(row, "context_tokens", 0),
        price=_price(row, name),
        priority=_whole(row, "priority", 0) if "priority" in row else None,
        weight=_number(row, "weight", 1.0) if "weight" in row else None,
    )


def _price(row: Mapping[str, Any], name: str) -> Price | None:
    given = [row.get(field) for field in ("input_per_million", "output_per_million")]
    if given == [None, None]:
        return None
    for value in given:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
            raise CloudConfigError(
                f"model {name}: 'input_per_million' and 'output_per_million' must both be numbers "
                "from 0."
            )
    # By way of the text: 0.1 is meant as it was written.
    return Price(Decimal(str(given[0])), Decimal(str(given[1])))


def _detector(row: object) -> DetectorSettings:
    """Refused when it would protect nobody: without a detector, or with one that finds nothing."""
    table = Table(row, "privacy", _PRIVACY)
    if "detector" not in table:
        raise SettingError(
            "privacy: 'detector' is missing, so nothing would be searched; add "
            'detector = "presidio", or take the table out.'
        )
    levels = (Privacy.LOCAL_ONLY.value, Privacy.LOCAL_PREFERRED.value)
    return DetectorSettings(
        kind=table.choice("detector", DETECTORS),
        raises_to=table.choice("raises_to", levels, levels[0]),
        entities=table.texts("entities"),
        min_score=table.number("min_score", 0.4, 0.0, 1.0),
        timeout_s=table.seconds("timeout_s", 5.0),
    )


def _key(row: Mapping[str, Any], folder: Path) -> str:
    if "key_file" in row:
        path = folder / _text(row, "key_file")
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CloudConfigError(f"key_file cannot be read: {error}") from error
    if "key_env" in row:
        name = _text(row, "key_env")
        key = os.environ.get(name)
        if not key:
            raise CloudConfigError(f"the environment variable {name} (key_env) is not set.")
        return key
    return str(row.get("key", ""))


def _limits(kind: type[_Limits], row: object, name: str) -> _Limits:
    """A dataclass of numbers above 0, its defaults for those that are not given."""
    table = _table(row, name)
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    _known(table, set(known), name)
    values = {key: _number(table, key, 1.0) for key in table}
    whole = {key: int(value) for key, value in values.items() if known[key].type == "int"}
    return kind(**(values | whole))


def _known(row: Mapping[str, Any], known: set[str], where: str) -> None:
    for name in row:
        if name not in known:
            listed = ", ".join(sorted(known))
            raise CloudConfigError(f"{where}: '{name}' is unknown. Known: {listed}.")


def _table(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise CloudConfigError(f"'{name}' must be a table.")
    return value


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value:
        raise CloudConfigError(f"'{name}' must be a string that is not empty.")
    return value


def _whole(row: Mapping[str, Any], name: str, default: int) -> int:
    value = row.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise CloudConfigError(f"'{name}' must be a whole number.")
    return value


def _number(row: Mapping[str, Any], name: str, default: float) -> float:
    value = row.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise CloudConfigError(f"'{name}' must be a number above 0.")
    return float(value)
