"""What a companion server sees of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

# Ours alone: a server, which is anybody's program, gets none of them (SHOAL_TOKEN, SHOAL_API_KEY).
# The mark by which `shoal down` finds what a killed supervisor left goes on.
_OURS = "SHOAL_"
_MARK = "SHOAL_FLEET"


def server_environment(added: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without what is ours, and with what the owner adds."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_OURS) or name == _MARK
    }
    return kept | dict(added)
