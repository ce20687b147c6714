"""How long the server computed, and each request's share of it; pure, the time is given.

A companion does not tell what it computes for whom. While n requests are with it, each is
taken to use an n-th of it: what energy is shared by (docs/energy.md).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Share:
    own_s: float
    began_busy_s: float
    mean_weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Used:
    """Seconds: its own share, and all that the server computed meanwhile.

    `mean_batch`: requests that were with the server, on average over this one's time.
    """

    own_s: float
    busy_s: float
    mean_batch: int


class BusyClock:
    """Shares the server's busy time among the requests that are with it."""

    def __init__(self, now_s: float) -> None:
        self._at_s = now_s
        self._busy_s = 0.0
        self._shares: dict[str, _Share] = {}

    @property
    def num_running(self) -> int:
        """Requests that are with the server."""
        return len(self._shares)

    def busy_s(self, now_s: float) -> float:
        """Seconds in which at least one request was with the server."""
        self._advance(now_s)
        return self._busy_s

    def begin(self, request_id: str, now_s: float) -> None:
        """A request goes to the server."""
        self._advance(now_s)
        self._shares[request_id] = _Share(0.0, self._busy_s)

    def end(self, request_id: str, now_s: float) -> Used:
        """A request is over; KeyError when it never began."""
        self._advance(now_s)
        share = self._shares.pop(request_id)
        busy_s = self._busy_s - share.began_busy_s
        mean = share.mean_weight / busy_s if busy_s > 0 else 1.0
        return Used(share.own_s, busy_s, max(1, round(mean)))

    def _advance(self, now_s: float) -> None:
        passed_s, self._at_s = max(0.0, now_s - self._at_s), now_s
        count = len(self._shares)
        if not count:
            return
        self._busy_s += passed_s
        for share in self._shares.values():
            share.own_s += passed_s / count
            share.mean_weight += passed_s * count
