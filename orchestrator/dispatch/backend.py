"""The seam between the gateway and whatever generates."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shoal.errors import ShoalError
from shoal.openai.tier_use import TierUse
from shoal.v1 import inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class Try:
    """One endpoint that was asked; `failed` empty: it served, or still runs."""

    endpoint: str
    started_unix_ms: int
    failed: str = ""


@dataclass(slots=True)
class Account:
    """What a generation used of tiers that cost money, and whom it asked there."""

    uses: dict[str, TierUse] = field(default_factory=dict)
    tries: list[Try] = field(default_factory=list)


class Generation(Protocol):
    """One running sequence."""

    @property
    def tier(self) -> str:
        """`edge` or `cloud`: where it runs now."""
        ...

    @property
    def account(self) -> Account:
        """What it used so far; complete when the last update was taken."""
        ...

    async def take(self) -> Sequence[pb.SequenceUpdate]:
        """Wait for news, then return all of it, in order; never empty.

        The last update ever is `finished` or `failed`; failures do not raise.
        """
        ...

    def cancel(self) -> None:
        """Stop it and free what it holds, at every hop below. Idempotent."""
        ...


class Backend(Protocol):
    """Something that generates."""

    def start(self, request: pb.GenerateRequest) -> Generation:
        """Begin; returns at once."""
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


def has_output(updates: Sequence[pb.SequenceUpdate]) -> bool:
    """Whether the updates hold anything that a client may have seen."""
    return any(update.HasField("delta") or update.HasField("finished") for update in updates)
