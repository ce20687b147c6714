"""Slots for sequences that the step loop does not compute: drafted and verified ones."""

from __future__ import annotations

from agent.engine.runner import Runner
from agent.engine.scheduler import Scheduler
from shoal.errors import Reason, ShoalError

# A round trip ends, or a short answer does.
_RETRY_AFTER_MS = 1_000


class Lending:
    """Gives slots out and takes them back; only on the runner's thread."""

    def __init__(self, runner: Runner, scheduler: Scheduler) -> None:
        self._runner = runner
        self._scheduler = scheduler
        # Seconds that were computed in lent slots; counted by who computes.
        self.compute_s = 0.0

    def lend(self) -> int:
        """A slot that the scheduler gives to nobody else. Raises OVERLOADED without one."""
        slot = self._scheduler.lend_slot()
        if slot is None:
            raise ShoalError(
                Reason.OVERLOADED,
                "all of the engine's slots are taken; try again later",
                retry_after_ms=_RETRY_AFTER_MS,
            )
        return slot

    def take_back(self, slot: int) -> None:
        """Empty the slot; it is free again."""
        self._runner.clear(slot)
        self._scheduler.take_back(slot)
