"""Background work gives way while somebody waits for a first token."""

from __future__ import annotations

import threading

# How long one block's write waits at most. Prompts one after another would hold it up
# for good: so 128 tokens leave in this time, about as fast as 2 cores compute them.
MAX_DELAY_S = 0.25


class Pace:
    """Set by the owner thread, waited for by writers before each block.

    Sealing and writing a block takes two cores' time from the computation: after a
    prompt of 2,048 tokens 16 blocks, for disk and shared tier each.
    """

    def __init__(self, max_delay_s: float = MAX_DELAY_S) -> None:
        self._max_delay_s = max_delay_s
        self._free = threading.Event()
        self._free.set()

    def hold(self) -> None:
        """Somebody waits for a first token from now on."""
        self._free.clear()

    def release(self) -> None:
        """Nobody does any more."""
        self._free.set()

    def give_way(self, queue_fill: float = 0.0) -> None:
        """Wait until nobody waits, for at most `max_delay_s`; on a writer's thread.

        The fuller its queue (of 1), the shorter: prompts that come faster than blocks
        leave would else fill it, and what finds no place in it is lost at a restart.
        """
        self._free.wait(self._max_delay_s * max(0.0, 1.0 - queue_fill))
