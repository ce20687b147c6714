"""All choices of one response as one source of updates."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from shoal.errors import ShoalError
from shoal.http.generation import Generation
from shoal.v1 import inference_pb2 as pb

Batch = Sequence[pb.SequenceUpdate]


def ends(updates: Batch) -> bool:
    """Whether the last update ends its sequence well; raises the failure otherwise."""
    last = updates[-1]
    if last.HasField("failed"):
        raise ShoalError.from_wire(last.failed)
    return bool(last.HasField("finished"))


class RunningChoices:
    """The running generations of one response.

    One choice is read directly; several are pumped into one queue, each by a task.
    """

    def __init__(self, generations: Sequence[Generation]) -> None:
        self.generations = generations
        self._queue: asyncio.Queue[tuple[int, Batch | BaseException]] | None = None
        self._pumps: list[asyncio.Task[None]] = []
        if len(generations) > 1:
            self._queue = asyncio.Queue()
            self._pumps = [
                asyncio.create_task(self._pump(index, generation))
                for index, generation in enumerate(generations)
            ]

    async def take(self) -> tuple[int, Batch]:
        """The next news: index of the choice, and its updates."""
        if self._queue is None:
            return 0, await self.generations[0].take()
        index, news = await self._queue.get()
        if isinstance(news, BaseException):
            raise news
        return index, news

    def cancel(self) -> None:
        """Stop all that still runs. Idempotent."""
        for pump in self._pumps:
            pump.cancel()
        for generation in self.generations:
            generation.cancel()

    async def _pump(self, index: int, generation: Generation) -> None:
        queue = self._queue
        if queue is None:
            return
        try:
            while True:
                updates = await generation.take()
                queue.put_nowait((index, updates))
                last = updates[-1]
                if last.HasField("finished") or last.HasField("failed"):
                    return
        except Exception as error:  # noqa: BLE001 - handed to the reader, who raises it
            queue.put_nowait((index, error))
