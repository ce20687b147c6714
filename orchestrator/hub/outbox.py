"""A bounded queue of frames towards one peer, closed at most once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Frame = TypeVar("Frame")


class Outbox(Generic[Frame]):
    """Frames in order, for one reader. Writers never wait: a full or closed box refuses.

    So a slow peer costs memory up to the bound and delays nobody else.
    """

    def __init__(self, capacity: int) -> None:
        self._frames: list[Frame] = []
        self._capacity = capacity
        self._closed = False
        self._discarded = False
        # The reader while it waits for frames, and while it waits for the peer.
        self._waiter: asyncio.Future[None] | None = None
        self._writer: asyncio.Task[object] | None = None

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def put(self, frame: Frame) -> bool:
        """Add a frame; False when the box is full or closed, and then nothing is added."""
        if self._closed or len(self._frames) >= self._capacity:
            return False
        self._frames.append(frame)
        self._wake()
        return True

    def close(self, last: Frame | None = None) -> None:
        """Refuse further frames; the reader still gets what waits, and `last` after it."""
        if self._closed:
            return
        if last is not None:
            self._frames.append(last)
        self._closed = True
        self._wake()

    def discard(self) -> None:
        """Close and drop what waits: the peer is gone or does not read."""
        self._frames.clear()
        self._discarded = True
        self.close()
        if self._writer is not None and self._writer is not asyncio.current_task():
            self._writer.cancel()
            self._writer = None

    async def take(self) -> list[Frame]:
        """All waiting frames, at least one; empty only when closed and drained."""
        while not self._frames:
            if self._closed:
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        frames, self._frames = self._frames, []
        return frames

    async def write_to(self, write: Callable[[list[Frame]], Awaitable[None]]) -> bool:
        """Write frames until the box is closed and empty: True.

        False as soon as it is discarded, even while `write` waits for the peer to read.
        No task of its own: a hub has one of these for each of its devices.
        """
        task = asyncio.current_task()
        while frames := await self.take():
            self._writer = task
            try:
                await write(frames)
            except asyncio.CancelledError:
                if self._writer is not None or task is None or task.uncancel() > 0:
                    raise  # by somebody else, not by `discard`
                return False
            finally:
                self._writer = None
        return not self._discarded

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
