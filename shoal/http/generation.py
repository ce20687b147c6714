"""One running sequence as its response sees it, whatever generates."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from shoal.errors import ShoalError
from shoal.openai.outcome import Running
from shoal.v1 import inference_pb2 as pb


class Generation(Running, Protocol):
    """One running sequence."""

    async def take(self) -> Sequence[pb.SequenceUpdate]:
        """Wait for news, then return all of it, in order; never empty.

        The last update ever is `finished` or `failed`; failures do not raise.
        """
        ...

    def cancel(self) -> None:
        """Stop it and free what it holds, at every hop below. Idempotent."""
        ...


class Mailbox:
    """Updates of one sequence between the connection that brings them and their reader.

    Unbounded by itself: an entry is one engine step of one sequence, and an engine
    generates no more of them than its context has tokens.
    """

    __slots__ = ("_items", "_waiter", "connection_lost")

    def __init__(self) -> None:
        # Set when the failure that ends the sequence is the connection's own.
        self.connection_lost = False
        self._items: list[pb.SequenceUpdate] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, update: pb.SequenceUpdate) -> None:
        """Add an update and wake the reader."""
        self._items.append(update)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[pb.SequenceUpdate]:
        """All that is there; waits while there is nothing. One reader only."""
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        items = self._items
        self._items = []
        return items


def failed_update(request_id: str, error: ShoalError) -> pb.SequenceUpdate:
    """The failure as the terminal update of a sequence."""
    return pb.SequenceUpdate(request_id=request_id, failed=error.to_wire())
