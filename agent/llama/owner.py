"""Work on the engine's thread from coroutines: between two steps, with its result."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeVar

from agent.engine.core import EngineCore
from agent.llama.loop import EngineLoop
from shoal.errors import ShoalError

_Result = TypeVar("_Result")


class Closeable(Protocol):
    """Something that holds a slot."""

    def close(self) -> None:
        """Let go of it; on the engine's thread."""


_Held = TypeVar("_Held", bound=Closeable)


class Owner:
    """Runs functions where the llama.cpp context may be used."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop

    async def call(self, work: Callable[[EngineCore], _Result]) -> _Result:
        """The function's result. A failed computation also ends the engine, as in a step.

        Raises what it raised; being cancelled does not stop what runs already.
        """
        done: Future[_Result] = Future()

        def run(core: EngineCore) -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(work(core))
            except (ShoalError, ValueError) as error:
                done.set_exception(error)
            except BaseException as error:
                done.set_exception(error)
                raise

        self._loop.post(run)
        return await asyncio.wrap_future(done)

    def post(self, work: Callable[[EngineCore], None]) -> None:
        """Have the function run soon; returns at once."""
        self._loop.post(work)

    @contextlib.asynccontextmanager
    async def holding(self, make: Callable[[EngineCore], _Held]) -> AsyncIterator[_Held]:
        """What `make` returns, closed at the end, also when that comes while it is made."""
        held: list[_Held] = []

        def keep(core: EngineCore) -> _Held:
            held.append(make(core))
            return held[0]

        try:
            yield await self.call(keep)
        finally:
            # After `keep` in the same queue, if that runs at all.
            self.post(lambda _: _close(held))


def _close(held: Sequence[Closeable]) -> None:
    for each in held:
        each.close()
