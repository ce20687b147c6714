"""The hub's queue over the virtual clock: who waits, whose turn it is, who is refused.

Order, bounds and predicted waits are orchestrator.queueing's and the router's; what is here
is how the hub asks them (hub/waiting.py, hub/placing.py), without its sessions and streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from orchestrator.fleet.view import DeviceId, FleetView
from orchestrator.queueing.entry import Entry, Lane, Size, entry_of, rest_of
from orchestrator.queueing.waiting_queue import Backlog, QueueLimits, WaitingQueue
from orchestrator.request import RouteRequest
from orchestrator.routing.decision import Decision
from orchestrator.routing.router import Router
from shoal.errors import Reason, ShoalError

# The defaults of HubConfig: how often the hub looks at those who wait, and the requests
# that it gives a device beyond its slots, as a share of them.
TICK_MS = 250.0
WAITING_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: RouteRequest
    tried: frozenset[DeviceId]
    entry: Entry


class HubQueue:
    """Requests that wait for a device of `view`; times are the virtual clock's, in ms."""

    def __init__(self, router: Router, view: FleetView, limits: QueueLimits) -> None:
        self._router = router
        self._view = view
        self._queue = WaitingQueue(limits)
        self._waiting: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def models(self) -> tuple[str, ...]:
        """Models that somebody waits for."""
        return self._queue.models

    def place(
        self, request: RouteRequest, tried: frozenset[DeviceId], now_ms: float
    ) -> DeviceId | None:
        """The device to send a new request to; None: it should wait.

        Nobody goes before those who wait for the same devices, but for a request that was
        on one already. Raises ShoalError when waiting would not help.
        """
        decision = self._route(request, tried, now_ms)
        if not decision.ranked:
            failure = decision.failure
            if failure is None or failure.reason is not Reason.OVERLOADED:
                raise failure or ShoalError(Reason.NO_DEVICE, decision.reason)
            return None
        if not tried and self._queue.holds(_lane(request, tried)):
            return None
        return decision.ranked[0]

    def wait(
        self, request: RouteRequest, tried: frozenset[DeviceId], arrived_ms: float, now_ms: float
    ) -> list[str]:
        """Let the request wait; those put out for it. ShoalError: it is refused instead."""
        expected = self._router.backlog(request, self._view, now_ms)
        size = Size(expected.prompt_tokens, expected.completion_tokens)
        entry = entry_of(request, size, arrived_ms, arrived_ms)
        entry = replace(entry, lane=_lane(request, tried))
        backlog = Backlog(expected.gap_ms, expected.ttft_ms, expected.sure_share)
        put_out = self._queue.offer(entry, backlog, now_ms)
        self._waiting[request.request_id] = _Waiting(request, tried, entry)
        return [self._waiting.pop(each.request_id).request.request_id for each in put_out]

    def serve(
        self, model: str, num_places: float, now_ms: float
    ) -> Iterator[tuple[str, DeviceId | None]]:
        """Up to `num_places` whose turn it is, each with its device; None: refused, too late.

        The caller sends each before it asks for the next.
        """
        blocked: set[Lane] = set()
        while num_places > 0 and (entry := self._queue.next(model, now_ms, blocked)) is not None:
            waiting = self._waiting[entry.request_id]
            request = rest_of(waiting.request, now_ms - entry.arrived_ms)
            decision = self._route(request, waiting.tried, now_ms)
            if now_ms + decision.foreseen_ttft_ms > entry.latest_first_token_ms:
                self._queue.remove(entry.request_id)
                del self._waiting[entry.request_id]
                yield entry.request_id, None
            elif decision.ranked:
                self._queue.take(entry.request_id, now_ms)
                del self._waiting[entry.request_id]
                num_places -= 1
                yield entry.request_id, decision.ranked[0]
            else:
                blocked.add(entry.lane)

    def expire(self, now_ms: float) -> list[str]:
        """Refuse who cannot be served in time any more."""
        expired = [entry.request_id for entry, _ in self._queue.expired(now_ms)]
        for request_id in expired:
            self._queue.remove(request_id)
            del self._waiting[request_id]
        return expired

    def _route(self, request: RouteRequest, tried: frozenset[DeviceId], now_ms: float) -> Decision:
        return self._router.route(request, self._view, exclude=tried, now_ms=now_ms)


def _lane(request: RouteRequest, tried: frozenset[DeviceId]) -> Lane:
    return Lane(request.model, request.device, request.device_class, frozenset(tried))
