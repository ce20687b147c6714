"""Background tasks of one owner: none is lost, no failure goes unheard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from shoal.tasks import cancelled


class Tasks:
    """Starts tasks and ends those that still run; `on_failure` hears of each that failed."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self._on_failure = on_failure

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run `work` in the background."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._finished)
        return task

    async def end(self) -> None:
        """Cancel all that run and wait for them."""
        await cancelled(self._running)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
