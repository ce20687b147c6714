"""Loopback ports for tests."""

from __future__ import annotations

import random

from shoal.ports import port_is_free

# Above Linux's ephemeral range: no outgoing connection takes one before it is bound, as
# happens to what `bind(0)` gives. Other tests that run at the same time choose others,
# but for one in some thousands.
_PORTS = range(61_000, 65_536)
_GIVEN: set[int] = set()
_RANDOM = random.SystemRandom()


def free_port() -> int:
    """A loopback port that is free and that this process was not given before."""
    while True:
        port = _RANDOM.choice(_PORTS)
        if port not in _GIVEN and port_is_free(port):
            _GIVEN.add(port)
            return port
