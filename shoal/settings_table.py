"""Tables of a configuration file, read field by field with type and range; pure.

TOML knows nan, inf, true and 0.5, and a later part would take each of them for something
else, or fail without a name. Every reader raises SettingError, which names the table, the
field and what it must be, and never shows a secret.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

# Seconds: what a clock can wait for, and what nobody waits for.
SHORTEST_S = 0.001
A_DAY_S = 86_400.0
_MAX_CHARACTERS = 512
_SECRET = re.compile(r"[!-~]{1,4096}")
_NUMBERS = re.compile(r"[0-9.]+")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?\.?")


class SettingError(ValueError):
    """The file cannot be used; the message says what to change."""


class Table:
    """One table; `where` is how messages call it. Names that are not `known` are refused."""

    def __init__(self, row: object, where: str, known: Collection[str]) -> None:
        if not isinstance(row, dict):
            raise SettingError(f"'{where}' must be a table.")
        self.where = where
        self._row: dict[str, Any] = row
        for name in row:
            if name not in known:
                listed = ", ".join(sorted(known))
                raise SettingError(f"{where}: '{name}' is unknown. Known: {listed}.")

    def __contains__(self, name: str) -> bool:
        return name in self._row

    def fails(self, name: str, must: str) -> SettingError:
        """To be raised: the field must be something else."""
        return SettingError(f"{self.where}: '{name}' must be {must}.")

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """A finite number, bounds included."""
        value = self._row.get(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:
            raise self.fails(name, f"a number from {least:g} to {most:g}")
        return float(value)

    def seconds(self, name: str, default: float, least: float = SHORTEST_S) -> float:
        """A time of at most a day."""
        return self.number(name, default, least, A_DAY_S)

    def whole(self, name: str, default: int | None, least: int, most: int) -> int:
        """A whole number, bounds included; `default` None: the field is needed."""
        value = self._row.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.fails(name, f"a whole number from {least} to {most}")
        return value

    def flag(self, name: str) -> bool:
        """True or false; false without the field."""
        value = self._row.get(name, False)
        if not isinstance(value, bool):
            raise self.fails(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Printable text of one line; `default` None: the field is needed."""
        value = self._row.get(name, default)
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise self.fails(name, "a string of one line that is not empty")
        if len(value) > _MAX_CHARACTERS:
            raise self.fails(name, f"a string of at most {_MAX_CHARACTERS} characters")
        return value

    def list_of(self, name: str) -> list[Any]:
        """The rows of `[[name]]` below this table, each still to be read; none without it."""
        return tables(self._row.get(name, []), name)

    def part(self, name: str) -> object:
        """The table `[name]` below this one, still to be read; empty without it."""
        return self._row.get(name, {})

    def texts(self, name: str) -> tuple[str, ...]:
        """A text or a list of texts, each once; empty without the field."""
        values = self._row.get(name, [])
        values = [values] if isinstance(values, str) else values
        if not isinstance(values, list):
            raise self.fails(name, "a list of strings")
        read = tuple(Table({name: each}, self.where, {name}).text(name) for each in values)
        if len(set(read)) < len(read):
            raise self.fails(name, "a list that names each once")
        return read

    def choice(self, name: str, known: Collection[str], default: str | None = None) -> str:
        """One of the texts."""
        value = self._row.get(name, default)
        if not isinstance(value, str) or value not in known:
            listed = " or ".join(f"'{each}'" for each in known)
            raise self.fails(name, f"{listed}, not {value!r}" if name in self else listed)
        return value

    def secret(self, name: str) -> str:
        """What may follow `Bearer`; see `one_line_secret`."""
        return one_line_secret(self._row.get(name), f"{self.where}: '{name}'")

    def url(self, name: str) -> str:
        """An http(s) address without a last slash, credentials, query and fragment."""
        value = self.text(name).rstrip("/")
        if "@" in value.partition("://")[2].partition("/")[0]:
            raise self.fails(name, "an address without credentials; use a key file")
        try:
            parts = urlsplit(value)
            valid = parts.scheme in ("http", "https") and parts.port != 0
            valid = valid and _is_host(parts.hostname or "")
        except ValueError:
            valid = False
        if not valid or any(each in value for each in " ?#\\"):
            raise self.fails(name, f"an http(s) address, which {value!r} is not")
        return value

    def address(self, name: str) -> str:
        """`host:port`, or `[host]:port` for IPv6."""
        value = self.text(name)
        host, _, port = value.rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        valid = _is_host(bare) and (":" in bare) == (bare != host)
        valid = valid and port.isascii() and port.isdigit() and len(port) <= 5
        if not valid or not 1 <= int(port) <= 65_535:
            raise self.fails(name, f"host:port, which {value!r} is not")
        return value


def tables(value: object, name: str) -> list[Any]:
    """The rows of `[[name]]`, each still to be read."""
    if isinstance(value, dict):
        raise SettingError(f"'{name}' must be a list of tables: write [[{name}]], not [{name}].")
    if not isinstance(value, list):
        raise SettingError(f"'{name}' must be a list of tables, [[{name}]].")
    return value


def one_line_secret(value: object, what: str) -> str:
    """A key as an HTTP header takes it: visible ASCII, one line, not empty."""
    if not isinstance(value, str) or not _SECRET.fullmatch(value):
        raise SettingError(
            f"{what} must hold one key: a line of visible ASCII characters without spaces."
        )
    return value


def _is_host(host: str) -> bool:
    """Whether it is a name in ASCII or an IP address."""
    try:
        if ":" in host:
            return bool(ipaddress.IPv6Address(host))
        if _NUMBERS.fullmatch(host):
            return bool(ipaddress.IPv4Address(host))
    except ValueError:
        return False
    return ".." not in host and bool(_HOST.fullmatch(host))
