"""Which devices a rollout is for, and how many at once."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.errors import invalid

_FIELDS = {"class": "class", "version": "agent_version", "state": "state"}
_GONE = ("LEFT", "REVOKED")


def select(
    devices: Sequence[Mapping[str, Any]], selector: str, labels: Mapping[str, Mapping[str, str]]
) -> list[Mapping[str, Any]]:
    """The devices, as the admin API lists them, that fit every term of the selector.

    `labels` by device id are what their owner called them. Raises ShoalError
    INVALID_ARGUMENT for a term that is none.
    """
    chosen = [device for device in devices if device["state"] not in _GONE]
    for term in selector.split(","):
        key, mark, value = term.strip().partition("=")
        if key == "all" and not mark:
            continue
        if not key or not mark:
            raise invalid(
                "selector",
                f"{term[:50]!r} is no term of a selector: all, name=GLOB, class=CLASS, "
                "version=VERSION, state=STATE or LABEL=VALUE; commas between.",
            )
        if key == "name":
            chosen = [each for each in chosen if fnmatch.fnmatch(each["name"], value)]
        elif key in _FIELDS:
            chosen = [each for each in chosen if each[_FIELDS[key]] == value]
        else:
            chosen = [each for each in chosen if labels.get(each["id"], {}).get(key) == value]
    return chosen


def batch_size(text: str, num_devices: int) -> int:
    """Devices at once, at least one; ShoalError for what is neither a number nor a share."""
    share = text.removesuffix("%")
    if not share.isdecimal() or not 0 < int(share) <= (100 if text.endswith("%") else 10**6):
        raise invalid("batch", f"'batch' is {text[:20]!r}; give a number of devices, or 10%.")
    return max(1, num_devices * int(share) // 100) if text.endswith("%") else int(share)
