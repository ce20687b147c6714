"""What a simulation refuses to start with."""

from __future__ import annotations


class InputError(ValueError):
    """A fleet file, a workload or an option is wrong; the message names it."""
