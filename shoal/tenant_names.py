"""What a tenant or an API key may be called: names that stand in logs and in addresses."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
TENANT_NAME_RULE = (
    "must be 1 to 63 letters, digits, dots, dashes or underscores and begin with a letter or digit"
)


def may_name_a_tenant(name: str) -> bool:
    """Whether the gateway takes it, as TENANT_NAME_RULE says."""
    return _NAME.fullmatch(name) is not None
