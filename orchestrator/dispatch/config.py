"""Cloud endpoints, retries and the detector of personal data, from a TOML or JSON file."""

from __future__ import annotations

import json
import os
import re
import ssl
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from orchestrator.dispatch.breaker import BreakerLimits
from orchestrator.dispatch.cascade.config import cascade_policies
from orchestrator.dispatch.endpoint import (
    CloudConfig,
    CloudEndpoint,
    CloudModel,
    DetectorSettings,
    RetryLimits,
    Timeouts,
)
from orchestrator.dispatch.prices import PRICE_FIELDS, price_of
from orchestrator.dispatch.speculative_models import drafted_models
from orchestrator.request import Privacy
from shoal.hosted_tables import hosted_models
from shoal.settings_table import SettingError, Table, one_line_secret
from shoal.vllm_models import vllm_models

_Limits = TypeVar("_Limits")

DETECTORS = ("presidio",)
_PARTS = ("endpoint", "drafted", "hosted", "vllm", "cascade")
_NOTHING = "needs at least one [[endpoint]], [[drafted]], [[hosted]], [[vllm]] or [[cascade]]."
_CURRENCY = re.compile(r"[A-Z]{3}")
_TOP = {*_PARTS, "currency", "retry", "privacy", "default_max_tokens"}
_KEYS = ("key", "key_file", "key_env")
_ENDPOINT = {
    *_KEYS, "name", "url", "model", "priority", "weight", "timeouts", "breaker", "ca_file",
    "max_connections",
}  # fmt: skip
_MODEL = {
    *PRICE_FIELDS, "name", "upstream", "num_parameters", "context_tokens", "priority", "weight",
}  # fmt: skip
_PRIVACY = {"detector", "raises_to", "entities", "min_score", "timeout_s"}
_MOST_PRIORITY = 1_000_000
_MOST_TOKENS = 2**31 - 1


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
    except (OSError, ValueError, RecursionError) as error:
        raise CloudConfigError(f"{path}: cannot be read: {error}") from error
    try:
        return _config(data, path.absolute().parent)
    except ValueError as error:
        raise CloudConfigError(f"{path}: {error}") from error


def _config(data: Any, folder: Path) -> CloudConfig:
    if not isinstance(data, dict) or not (any(map(data.get, _PARTS)) or "privacy" in data):
        raise SettingError(_NOTHING)
    top = Table(data, "the file", _TOP)
    currency = top.text("currency", "USD")
    if not _CURRENCY.fullmatch(currency):
        raise top.fails("currency", 'three capital letters, as in "EUR"')
    config = CloudConfig(
        endpoints=tuple(_endpoint(row, folder) for row in top.list_of("endpoint")),
        currency=currency,
        retry=_limits(RetryLimits, top, "retry"),
        detector=_detector(top.part("privacy")) if "privacy" in top else DetectorSettings(),
        default_max_tokens=top.whole("default_max_tokens", 4_096, 1, _MOST_TOKENS),
        drafted=drafted_models(top.list_of("drafted")),
        cascades=cascade_policies(top.list_of("cascade")),
        hosted=hosted_models(top.list_of("hosted"), folder),
        vllm=vllm_models(top.list_of("vllm")),
    )
    _check_names(config)
    return config


def _check_names(config: CloudConfig) -> None:
    """Names that several tables may not share."""
    ours = [f"hosted-{each.name}" for each in config.hosted]
    ours += [f"vllm-{each.name}" for each in config.vllm]
    twice = _twice([each.name for each in config.endpoints] + ours)
    if twice:
        raise SettingError(f"two endpoints have the same name, '{twice}'; give each its own.")
    asked = [each.name for each in config.drafted] + [each.name for each in config.cascades]
    twice = _twice(asked)
    if twice:
        raise SettingError(f"a [[cascade]] and a [[drafted]] have the same name, '{twice}'.")


def _twice(names: Iterable[str]) -> str:
    """The first name that is there more than once; empty: none."""
    return next((name for name, count in Counter(names).items() if count > 1), "")


def _endpoint(row: object, folder: Path) -> CloudEndpoint:
    table = Table(row, "endpoint", _ENDPOINT)
    url = table.url("url")
    name = table.text("name", urlsplit(url).hostname)
    table.where = f"endpoint {name}"
    models = tuple(_model(each) for each in table.list_of("model"))
    if not models:
        raise SettingError(f"endpoint {name}: needs at least one [[endpoint.model]].")
    twice = _twice(model.name for model in models)
    if twice:
        raise SettingError(f"endpoint {name}: has the model '{twice}' twice.")
    return CloudEndpoint(
        name=name,
        url=url,
        models=models,
        key=_key(table, folder),
        priority=_priority(table),
        weight=_weight(table),
        timeouts=_limits(Timeouts, table, "timeouts"),
        breaker=_limits(BreakerLimits, table, "breaker"),
        ca_file=_ca_file(table, folder) if "ca_file" in table else None,
        max_connections=table.whole("max_connections", 256, 1, 65_535),
    )


def _model(row: object) -> CloudModel:
    table = Table(row, "endpoint.model", _MODEL)
    name = table.text("name")
    table.where = f"model {name}"
    return CloudModel(
        name=name,
        upstream=table.text("upstream", name),
        num_parameters=table.whole("num_parameters", None, 1, 10**15),
        context_tokens=table.whole("context_tokens", 0, 0, _MOST_TOKENS),
        price=price_of(table),
        priority=_priority(table) if "priority" in table else None,
        weight=_weight(table) if "weight" in table else None,
    )


def _priority(table: Table) -> int:
    return table.whole("priority", 0, -_MOST_PRIORITY, _MOST_PRIORITY)


def _weight(table: Table) -> float:
    return table.number("weight", 1.0, 1e-6, 1e6)


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


def _key(table: Table, folder: Path) -> str:
    given = [each for each in _KEYS if each in table]
    if len(given) > 1:
        raise SettingError(f"{table.where}: '{given[0]}' and '{given[1]}' are given; keep one.")
    if "key_file" in table:
        path = folder / table.text("key_file")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise table.fails("key_file", f"a file that can be read: {error}") from error
        return one_line_secret(text.strip(), f"{table.where}: 'key_file', {path},")
    if "key_env" in table:
        name = table.text("key_env")
        key = os.environ.get(name)
        if not key:
            raise SettingError(
                f"{table.where}: the environment variable {name} ('key_env') is not set."
            )
        return one_line_secret(key.strip(), f"{table.where}: the variable {name} ('key_env')")
    return table.secret("key") if "key" in table else ""


def _ca_file(table: Table, folder: Path) -> Path:
    path = folder / table.text("ca_file")
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:
        raise table.fails("ca_file", f"a file of PEM certificates; {path}: {error}") from error
    return path


def _limits(kind: type[_Limits], table: Table, name: str) -> _Limits:
    """A dataclass of whole numbers and seconds; its defaults for those that are not given."""
    known = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    where = f"{table.where}, {name}"
    limits = Table(table.part(name), where, known)
    return kind(
        **{
            each: limits.whole(each, None, 1, _MOST_TOKENS)
            if known[each] == "int"
            else limits.seconds(each, 0.0)
            for each in known
            if each in limits
        }
    )
