"""Ends asyncio tasks for sure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

# How long a cancelled task may take for its own cleaning up before it is told again.
_AGAIN_S = 2.0


async def cancelled(tasks: Iterable[asyncio.Task[Any]], *, again_s: float = _AGAIN_S) -> None:
    """Cancel the tasks and wait until each has ended; their errors count as seen.

    One `cancel` is not enough: before Python 3.12 `asyncio.wait_for`, which Redis's client
    sends with, drops a cancellation that comes as its inner task ends, and the loop round
    it goes on for ever. A task that is still there after `again_s` is cancelled again.
    """
    waiting = set(tasks)
    while waiting:
        for task in waiting:
            task.cancel()
        done, waiting = await asyncio.wait(waiting, timeout=again_s)
        await asyncio.gather(*done, return_exceptions=True)
