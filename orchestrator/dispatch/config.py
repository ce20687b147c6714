"""Cloud endpoints, from a TOML or JSON file."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class CloudConfigError(ValueError):
    """The file cannot be used; the message says what to change."""


@dataclass(frozen=True, slots=True)
class CloudModel:
    """A model that an endpoint serves; `upstream` is the endpoint's own name of it."""

    name: str
    upstream: str
    num_parameters: int
    context_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CloudEndpoint:
    """One OpenAI-compatible endpoint; `url` up to and including `/v1`."""

    name: str
    url: str
    models: tuple[CloudModel, ...]
    key: str = field(default="", repr=False)
    connect_timeout_s: float = 10.0
    # Between two pieces of the response, the first included: a long prompt takes a while.
    read_timeout_s: float = 120.0
    max_connections: int = 256


def load_cloud_endpoints(path: Path) -> tuple[CloudEndpoint, ...]:
    """The endpoints in the file's `endpoint` array.

    Keys are read here: `key` as given, `key_file` (relative to the config file) or
    `key_env`. Raises CloudConfigError, which never shows a key.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise CloudConfigError(f"{path}: cannot be read: {error}") from error
    rows = data.get("endpoint") if isinstance(data, dict) else None
    if not isinstance(rows, list) or not rows:
        raise CloudConfigError(f"{path}: needs at least one [[endpoint]].")
    try:
        return tuple(_endpoint(row, path.parent) for row in rows)
    except CloudConfigError as error:
        raise CloudConfigError(f"{path}: {error}") from error.__cause__


def _endpoint(row: Mapping[str, Any], folder: Path) -> CloudEndpoint:
    url = _text(row, "url").rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CloudConfigError(f"endpoint url {url!r} is not an http(s) address.")
    models = row.get("model")
    if not isinstance(models, list) or not models:
        raise CloudConfigError(f"endpoint {url}: needs at least one [[endpoint.model]].")
    return CloudEndpoint(
        name=str(row.get("name") or parts.hostname),
        url=url,
        models=tuple(_model(model) for model in models),
        key=_key(row, folder),
        connect_timeout_s=_seconds(row, "connect_timeout_s", 10.0),
        read_timeout_s=_seconds(row, "read_timeout_s", 120.0),
    )


def _model(row: Mapping[str, Any]) -> CloudModel:
    name = _text(row, "name")
    num_parameters = row.get("num_parameters")
    if not isinstance(num_parameters, int) or num_parameters <= 0:
        raise CloudConfigError(f"model {name}: needs num_parameters, a whole number above 0.")
    return CloudModel(
        name=name,
        upstream=str(row.get("upstream") or name),
        num_parameters=num_parameters,
        context_tokens=int(row.get("context_tokens", 0)),
    )


def _key(row: Mapping[str, Any], folder: Path) -> str:
    if "key_file" in row:
        path = folder / _text(row, "key_file")
        try:
            return path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise CloudConfigError(f"key_file cannot be read: {error}") from error
    if "key_env" in row:
        name = _text(row, "key_env")
        key = os.environ.get(name)
        if not key:
            raise CloudConfigError(f"the environment variable {name} (key_env) is not set.")
        return key
    return str(row.get("key", ""))


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value:
        raise CloudConfigError(f"'{name}' must be a string that is not empty.")
    return value


def _seconds(row: Mapping[str, Any], name: str, default: float) -> float:
    value = row.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise CloudConfigError(f"'{name}' must be a number of seconds above 0.")
    return float(value)
