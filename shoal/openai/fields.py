"""Typed reading of JSON fields; every refusal names the parameter by its full path."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.errors import ShoalError, invalid

_KINDS = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


def kind(value: object) -> str:
    """What a JSON value is, in words."""
    return _KINDS.get(type(value), "something else")


def text(value: object, param: str) -> str:
    """`value` as a string that can be sent on as UTF-8."""
    if not isinstance(value, str):
        raise invalid(param, f"'{param}' must be a string, not {kind(value)}.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise invalid(
            param, f"'{param}' holds an unpaired surrogate, which no text can hold."
        ) from None
    return value


def integer(value: object, param: str, low: int, high: int) -> int:
    """`value` as a whole number within [low, high]; a float with no fraction counts."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(param, f"'{param}' must be an integer, not {_described(value)}.")
    if not low <= value <= high:
        raise invalid(param, f"'{param}' must be between {low} and {high}.")
    return value


def number(value: object, param: str, low: float, high: float) -> float:
    """`value` as a finite number within [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(param, f"'{param}' must be a number, not {kind(value)}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise invalid(param, f"'{param}' must be a finite number.")
    # Compared before conversion: an integer may be too large for a float.
    if not low <= value <= high:
        raise invalid(param, f"'{param}' must be between {low:g} and {high:g}.")
    return float(value)


def _described(value: object) -> str:
    return "a fraction" if isinstance(value, float) and math.isfinite(value) else kind(value)


class Fields:
    """A JSON object under a path; null and absent mean the same, as OpenAI's API has it."""

    def __init__(self, data: Mapping[str, Any], path: str = "") -> None:
        self._data = data
        self._path = path

    def param(self, name: str) -> str:
        """The full path of a field, for messages."""
        return f"{self._path}.{name}" if self._path else name

    def raw(self, name: str) -> Any:
        """The field as it came, None when absent."""
        return self._data.get(name)

    def names(self) -> Sequence[str]:
        """All fields present."""
        return list(self._data)

    def text(self, name: str) -> str | None:
        """A string."""
        value = self._data.get(name)
        return None if value is None else text(value, self.param(name))

    def integer(self, name: str, low: int, high: int) -> int | None:
        """A whole number within [low, high]."""
        value = self._data.get(name)
        return None if value is None else integer(value, self.param(name), low, high)

    def number(self, name: str, low: float, high: float) -> float | None:
        """A finite number within [low, high]."""
        value = self._data.get(name)
        return None if value is None else number(value, self.param(name), low, high)

    def flag(self, name: str) -> bool:
        """A boolean; absent is false."""
        value = self._data.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise invalid(
                self.param(name), f"'{self.param(name)}' must be a boolean, not {kind(value)}."
            )
        return value

    def choice(self, name: str, allowed: Sequence[str]) -> str | None:
        """One of the allowed strings."""
        value = self.text(name)
        if value is not None and value not in allowed:
            listed = ", ".join(f"'{item}'" for item in allowed)
            raise invalid(self.param(name), f"'{self.param(name)}' must be one of {listed}.")
        return value

    def nested(self, name: str) -> Fields | None:
        """A nested object."""
        value = self._data.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise invalid(
                self.param(name), f"'{self.param(name)}' must be an object, not {kind(value)}."
            )
        return Fields(value, self.param(name))

    def unsupported(self, name: str, *, unless: Sequence[object] = ()) -> None:
        """Refuse a known field that is not served, unless it says nothing."""
        value = self._data.get(name)
        if value is None or value in ([], {}, "") or value in unless:
            return
        raise not_supported(self.param(name))


def not_supported(param: str, what: str = "") -> ShoalError:
    """The refusal of a known parameter, or of one of its values."""
    subject = what or f"'{param}'"
    return invalid(param, f"{subject} is not supported by this server. Leave it out.")
