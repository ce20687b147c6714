"""What a device may be called: one rule for the hub, and for a command line that makes a folder
of the name."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# Devices are addressed by id or by name: no name may be another device's id.
_LIKE_ID = re.compile(r"[0-9a-f]{32}")
DEVICE_NAME_RULE = (
    "name must be 1 to 63 letters, digits, dots, dashes or underscores, begin with a letter or "
    "digit and not look like a device id"
)


def may_name_a_device(name: str) -> bool:
    """Whether a fleet takes a device of this name, as DEVICE_NAME_RULE says."""
    return _NAME.fullmatch(name) is not None and _LIKE_ID.fullmatch(name) is None
