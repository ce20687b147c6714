"""A bounded queue of frames towards one peer, closed at most once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Frame = TypeVar("Frame")


class Outbox(Generic[Frame]):
    """Frames in order, for one reader. Writers never wait: a full or closed box refuses.

    So a slow peer costs memory up to the bound and delays nobody else.
    """

    def __init__(self, capacity: int) -> None:
        self._frames: deque[Frame] = deque()
        self._capacity = capacity
        self._changed = asyncio.Event()
        self._discarded = asyncio.Event()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def put(self, frame: Frame) -> bool:
        """Add a frame; False when the box is full or closed, and then nothing is added."""
        if self._closed or len(self._frames) >= self._capacity:
            return False
        self._frames.append(frame)
        self._changed.set()
        return True

    def close(self, last: Frame | None = None) -> None:
        """Refuse further frames; the reader still gets what waits, and `last` after it."""
        if self._closed:
            return
        if last is not None:
            self._frames.append(last)
        self._closed = True
        self._changed.set()

    def discard(self) -> None:
        """Close and drop what waits: the peer is gone or does not read."""
        self._frames.clear()
        self._discarded.set()
        self.close()

    async def take(self) -> list[Frame]:
        """All waiting frames, at least one; empty only when closed and drained."""
        while not self._frames:
            if self._closed:
                return []
            self._changed.clear()
            await self._changed.wait()
        frames = list(self._frames)
        self._frames.clear()
        return frames

    async def write_to(self, write: Callable[[list[Frame]], Awaitable[None]]) -> bool:
        """Write frames until the box is closed and empty: True.

        False as soon as it is discarded, even while `write` waits for the peer to read.
        """
        writer = asyncio.create_task(self._write_all(write))
        discarded = asyncio.create_task(self._discarded.wait())
        try:
            await asyncio.wait({writer, discarded}, return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
            return not self._discarded.is_set()
        finally:
            writer.cancel()
            discarded.cancel()
            await asyncio.gather(writer, discarded, return_exceptions=True)

    async def _write_all(self, write: Callable[[list[Frame]], Awaitable[None]]) -> None:
        while frames := await self.take():
            await write(frames)
