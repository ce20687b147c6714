"""Which devices an order is for: `class=arm_cpu,site!=lab,gpu,!slow`; `*` means all.

Every term must hold. Labels of a device are those that its owner set and the built-in
ones: `id`, `name`, `class`, `arch`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,62}[A-Za-z0-9])?")
BUILT_IN = frozenset({"id", "name", "class", "arch"})
# Before a model's name: what a device's calibration chose for it, as its agent tells. No owner's.
CALIBRATED = "calibrated/"


@dataclass(frozen=True, slots=True)
class Term:
    """One condition; `value` None asks only whether the label is there."""

    key: str
    value: str | None
    negated: bool

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether a device with these labels is meant."""
        found = labels.get(self.key)
        return (found is not None if self.value is None else found == self.value) != self.negated


@dataclass(frozen=True, slots=True)
class Selector:
    """All terms together; none: every device."""

    terms: tuple[Term, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a device with these labels is meant."""
        return all(term.holds(labels) for term in self.terms)


def check_label(text: str) -> str:
    """A key or value as it may be; raises ValueError."""
    if not _LABEL.fullmatch(text):
        raise ValueError(f"{text[:70]!r} is no label: letters, digits, '.', '_', '-', '/'; max. 64")
    return text


def parse_selector(text: str) -> Selector:
    """The selector that the text means; raises ValueError."""
    if text.strip() == "*":
        return Selector(())
    terms = [_term(part.strip()) for part in text.split(",")]
    return Selector(tuple(terms))


def _term(text: str) -> Term:
    if not text:
        raise ValueError("an empty selector; '*' means every device")
    if text.startswith("!"):
        return Term(check_label(text[1:]), None, negated=True)
    key, mark, value = text.partition("=")
    if not mark:
        return Term(check_label(key), None, negated=False)
    negated = key.endswith("!")
    return Term(check_label(key.removesuffix("!")), check_label(value), negated=negated)
