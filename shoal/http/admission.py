"""A bound on the requests that a server holds at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shoal.errors import Reason, ShoalError

# From this share of the limit on, a tenant that holds more than an equal part is refused,
# so that the flood of one leaves places to the others.
CROWDED = 0.75


class Admission:
    """Counts requests in flight; refuses beyond the limit, never queues."""

    def __init__(self, max_in_flight: int) -> None:
        self.max_in_flight = max_in_flight
        self.in_flight = 0
        self._held: dict[str, int] = {}

    @contextmanager
    def slot(self, tenant: str) -> Iterator[None]:
        """Hold a place for the block; raises OVERLOADED when none is free for the tenant."""
        held = self._held.get(tenant, 0)
        if self.in_flight >= self.max_in_flight * CROWDED and not self._has_room(held):
            raise ShoalError(
                Reason.OVERLOADED,
                f"The server already holds {self.in_flight} requests, {held} of them of this"
                " tenant. Try again soon.",
                retry_after_ms=1_000,
            )
        self.in_flight += 1
        self._held[tenant] = held + 1
        try:
            yield
        finally:
            self.in_flight -= 1
            self._held[tenant] -= 1
            if not self._held[tenant]:
                del self._held[tenant]

    def _has_room(self, held: int) -> bool:
        if self.in_flight >= self.max_in_flight:
            return False
        num_tenants = len(self._held) + (held == 0)
        return num_tenants == 1 or held < self.max_in_flight / num_tenants
