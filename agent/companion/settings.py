"""What a companion server is, as its owner writes it down (docs/companion.md)."""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agent.hardware.report import DEVICE_CLASSES

# "1.5b", "qwen2.5-0.5b-instruct", "llama3.2:1b": the size as model names carry it.
_SIZE = re.compile(r"(?:^|[-_:. ])(\d+(?:\.\d+)?)([bm])(?:$|[-_:. ])", re.IGNORECASE)
_UNITS = {"b": 10**9, "m": 10**6}
_NOT_IN_NAMES = re.compile(r"[^a-z0-9._-]+")
_FIELDS = frozenset(
    (
        *("name", "url", "model", "class", "command", "directory", "environment", "slots"),
        *("context_tokens", "parameters", "quantisation", "health_url", "key_file", "body"),
        *("allow_remote", "max_waiting", "stall_s"),
    )
)


class CompanionError(ValueError):
    """The description of a companion is wrong; the message names the field and the remedy."""


@dataclass(frozen=True, slots=True)
class CompanionSettings:
    """One model on one companion server.

    `command` empty: the server runs already, by somebody else's doing. 0 parameters or
    context tokens: the server is asked. `body`: fields put into every request that the
    client left out. `stall_s`: silence after which a request has failed.
    """

    name: str
    url: str
    upstream_model: str
    device_class: str = ""
    command: tuple[str, ...] = ()
    directory: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    # NPU servers take one request at a time; others are told to state more.
    slots: int = 1
    context_tokens: int = 0
    num_parameters: int = 0
    quantisation: str = ""
    health_url: str = ""
    key_file: Path | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    allow_remote: bool = False
    max_waiting: int = 64
    stall_s: float = 120.0

    @property
    def is_remote(self) -> bool:
        """Whether prompts leave this machine."""
        return not _is_loopback(urlsplit(self.url).hostname or "")


def read_companions(argument: str) -> tuple[CompanionSettings, ...]:
    """What `--companion ARGUMENT` means: a TOML file, or URL#MODEL of a running server.

    Raises CompanionError.
    """
    if argument.startswith(("http://", "https://")):
        url, _, model = argument.partition("#")
        if not model:
            raise CompanionError(
                f"--companion {argument}: name the server's model, as in {url}#MODEL"
            )
        return (_companion({"url": url, "model": model}, argument),)
    try:
        document = tomllib.loads(Path(argument).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CompanionError(f"--companion {argument}: {error}") from error
    rows = document.pop("companion", None)
    if document or not isinstance(rows, list) or not rows:
        raise CompanionError(
            f"--companion {argument}: wanted are [[companion]] tables and nothing else"
        )
    found = tuple(_companion(row, argument) for row in rows)
    names = [each.name for each in found]
    if len(set(names)) < len(names):
        raise CompanionError(f"--companion {argument}: two companions have the same name")
    return found


def find_companion(argument: str, name: str) -> CompanionSettings:
    """The one of this name in `argument`; CompanionError when there is none."""
    for companion in read_companions(argument):
        if companion.name == name:
            return companion
    raise CompanionError(f"--companion {argument}: holds no companion named {name!r}")


def parameters_in(name: str) -> int:
    """The size that a model's name states ("llama3.2:1b"); 0 when it states none."""
    found = _SIZE.search(name)
    return round(float(found.group(1)) * _UNITS[found.group(2).lower()]) if found else 0


def _companion(row: object, source: str) -> CompanionSettings:
    if not isinstance(row, dict):
        raise CompanionError(f"--companion {source}: a companion is a table")
    unknown = sorted(row.keys() - _FIELDS)
    if unknown:
        raise CompanionError(f"--companion {source}: unknown field {unknown[0]!r}")
    read = _Row(row, source)
    model = read.text("model", required=True)
    device_class = read.text("class")
    if device_class and device_class not in DEVICE_CLASSES:
        raise read.wrong("class", f"must be one of {', '.join(DEVICE_CLASSES)}")
    companion = CompanionSettings(
        name=read.text("name") or _NOT_IN_NAMES.sub("-", model.lower()).strip("-"),
        url=read.text("url", required=True).rstrip("/"),
        upstream_model=model,
        device_class=device_class,
        command=read.texts("command"),
        directory=read.path("directory"),
        environment={key: str(value) for key, value in read.table("environment").items()},
        slots=read.whole("slots", 1, least=1),
        context_tokens=read.whole("context_tokens", 0),
        num_parameters=read.parameters(),
        quantisation=read.text("quantisation"),
        health_url=read.text("health_url"),
        key_file=read.path("key_file"),
        body=read.table("body"),
        allow_remote=row.get("allow_remote") is True,
        max_waiting=read.whole("max_waiting", 64),
        stall_s=float(read.whole("stall_s", 120, least=1)),
    )
    _check_urls(companion, read)
    return companion


def _check_urls(companion: CompanionSettings, read: _Row) -> None:
    for name, url in (("url", companion.url), ("health_url", companion.health_url)):
        if not url:
            continue
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise read.wrong(name, "must be an http or https URL")
        if not companion.allow_remote and not _is_loopback(parts.hostname):
            raise read.wrong(
                name,
                f"{parts.hostname} is another machine, and prompts would leave this one; use "
                "127.0.0.1, or state allow_remote = true",
            )


def _is_loopback(host: str) -> bool:
    """Whether the address is this machine's own, without asking any name service."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Row:
    """One table's fields, checked."""

    def __init__(self, row: dict[str, Any], source: str) -> None:
        self._row = row
        self._source = source

    def wrong(self, name: str, why: str) -> CompanionError:
        return CompanionError(f"--companion {self._source}: {name}: {why}")

    def text(self, name: str, *, required: bool = False) -> str:
        value = self._row.get(name, "")
        if not isinstance(value, str) or (required and not value):
            raise self.wrong(name, "must be a text")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        values = self._row.get(name, [])
        if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
            raise self.wrong(name, 'must be a list of texts, as in ["server", "--port", "8080"]')
        return tuple(values)

    def whole(self, name: str, default: int, *, least: int = 0) -> int:
        value = self._row.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(name, f"must be a whole number of at least {least}")
        return value

    def table(self, name: str) -> dict[str, Any]:
        value = self._row.get(name, {})
        if not isinstance(value, dict):
            raise self.wrong(name, "must be a table")
        return value

    def path(self, name: str) -> Path | None:
        text = self.text(name)
        return Path(text).expanduser() if text else None

    def parameters(self) -> int:
        value = self._row.get("parameters", 0)
        if isinstance(value, str) and (stated := parameters_in(value)):
            return stated
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        raise self.wrong("parameters", 'must be a number or a text such as "1.5B"')
