"""What options take, beyond what their types say."""

from __future__ import annotations

import math

import typer


def finite(value: float | None) -> float | None:
    """The value of a float option; BadParameter for inf and nan, which bounds let through."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value
