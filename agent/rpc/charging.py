"""Joules into the answers: what the engines tell meets what the meters measure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from agent.hardware.account import EnergyAccount, Work
from shoal.v1 import inference_pb2 as pb

# Power sensors are integrated: a shorter pause would cost a small board more than it tells.
_SAMPLE_EVERY_S = 0.5


class Charging:
    """Follows requests from submit to end; some small files are read at each of the two."""

    def __init__(self, account: EnergyAccount, monotonic: Callable[[], float]) -> None:
        self._account = account
        self._monotonic = monotonic

    def begun(self, request_id: str) -> None:
        """A request goes to its engine."""
        self._account.begin(request_id, self._monotonic())

    def finished(self, request_id: str, model: str, finished: pb.Finished) -> None:
        """Write the request's joules into its timings; they stay absent when not known."""
        timings = finished.timings
        work = Work(model, timings.compute_ms / 1e3, timings.busy_ms / 1e3)
        charge = self._account.charge(request_id, work, self._monotonic())
        # An engine that tells of no computing leaves nothing to share by.
        if charge is not None and charge.joules > 0:
            timings.joules = charge.joules
            timings.joules_estimated = charge.estimated

    def dropped(self, request_ids: Iterable[str]) -> None:
        """Requests ended without a result."""
        self._account.forget(request_ids, self._monotonic())

    def engine_load(self, load: pb.EngineLoad) -> None:
        """An engine reported how much it has computed."""
        compute_s = load.counters.get("compute_seconds")
        if compute_s is not None:
            self._account.note_engine(load.model, compute_s, self._monotonic())

    async def sample_forever(self) -> None:
        """Read the meters while requests run, until cancelled; costs nothing when none do."""
        while True:
            await asyncio.sleep(_SAMPLE_EVERY_S)
            if self._account.num_open:
                self._account.sample(self._monotonic())
