"""A bound on the requests that a gateway holds at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shoal.errors import Reason, ShoalError


class Admission:
    """Counts requests in flight; refuses beyond the limit, never queues."""

    def __init__(self, max_in_flight: int) -> None:
        self.max_in_flight = max_in_flight
        self.in_flight = 0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold a place for the block; raises OVERLOADED when none is free."""
        if self.in_flight >= self.max_in_flight:
            raise ShoalError(
                Reason.OVERLOADED,
                f"The gateway already serves {self.max_in_flight} requests. Try again soon.",
                retry_after_ms=1_000,
            )
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
