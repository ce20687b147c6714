"""The thread that owns the llama.cpp context and runs the step loop."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import structlog

from agent.engine.core import EngineCore
from agent.engine.output import Load, Update
from agent.engine.runner import RunnerError
from shoal.errors import Reason, ShoalError

log = structlog.get_logger()

LOAD_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class LoopListener:
    """Called on the engine's thread; must return at once."""

    on_output: Callable[[list[Update], Load | None], None]
    on_failure: Callable[[str], None]


class EngineLoop:
    """Runs a core, made on the loop's own thread, until it is stopped or fails."""

    def __init__(
        self, make_core: Callable[[Callable[[], None]], EngineCore], listener: LoopListener
    ) -> None:
        """`make_core` loads the model; it runs on the loop's thread, as all that follows.

        It is given what to call, from any thread, to have the core take a step.
        """
        self._make_core = make_core
        self._listener = listener
        self._inbox: deque[Callable[[EngineCore], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._woken = False
        self._thread = threading.Thread(
            # The log's bound values are the starting thread's.
            target=contextvars.copy_context().run,
            args=(self._run,),
            name="engine-loop",
            daemon=True,
        )
        self._next_load_s = 0.0
        self._last_frame_s = 0.0
        self.ready: Future[None] = Future()

    def start(self) -> None:
        """Start the thread; `ready` is set when the core was made, or with its failure."""
        self._thread.start()

    def post(self, action: Callable[[EngineCore], None]) -> None:
        """Have the action run on the core between two steps; returns at once."""
        with self._wake:
            self._inbox.append(action)
            self._wake.notify()

    def wake(self) -> None:
        """Have the core take a step though nothing was posted; returns at once."""
        with self._wake:
            self._woken = True
            self._wake.notify()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """End the thread after its current step; False when it did not end in time."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            core = self._make_core(self.wake)
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for `ready`
            self.ready.set_exception(error)
            return
        self.ready.set_result(None)
        try:
            while self._take_inbox(core):
                if core.has_work or core.can_compute or self._woken:
                    self._woken = False
                    core.step()
                self._publish(core)
            core.close()
        except RunnerError as error:
            log.error("engine_step_failed", error=str(error))
            core.fail_all(ShoalError(Reason.ENGINE_CRASHED, "the engine failed; try again"))
            self._listener.on_output(core.take_updates(), None)
            self._listener.on_failure(str(error))
        except Exception as error:
            log.exception("engine_loop_failed")
            self._listener.on_failure(f"{type(error).__name__}: {error}")

    def _take_inbox(self, core: EngineCore) -> bool:
        """Run what was posted, waiting for it while there is nothing else; False to stop."""
        if not self._inbox and not core.can_compute and not self._stopping:
            with self._wake:
                if not self._inbox and not self._stopping and not self._woken:
                    self._wake.wait(_pause_s(core))
        while self._inbox:
            self._inbox.popleft()(core)
        return not self._stopping

    def _publish(self, core: EngineCore) -> None:
        now_s = time.monotonic()
        updates = []
        if now_s >= self._last_frame_s + core.frame_interval_s:
            updates = core.take_updates()
        if updates:
            self._last_frame_s = now_s
        load = None
        if now_s >= self._next_load_s or (updates and not core.has_work):
            self._next_load_s = now_s + LOAD_INTERVAL_S
            load = core.load()
        if updates or load is not None:
            self._listener.on_output(updates, load)


def _pause_s(core: EngineCore) -> float:
    deadline_s = core.next_deadline_s()
    if deadline_s is None:
        return LOAD_INTERVAL_S
    return min(LOAD_INTERVAL_S, max(0.0, deadline_s - time.monotonic()))
