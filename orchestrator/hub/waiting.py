"""Requests that wait in the hub: when one may, and what it is told when it may not.

The order, the bounds and the predicted waits are orchestrator.queueing's.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from orchestrator.config import HubConfig
from orchestrator.fleet.view import DeviceState, FleetView
from orchestrator.hub.active import ActiveRequest
from orchestrator.queueing import refusal
from orchestrator.queueing.entry import Entry, Lane, Size, entry_of, rest_of
from orchestrator.queueing.waiting_queue import Backlog, QueueLimits, WaitingQueue
from orchestrator.request import RouteRequest
from orchestrator.routing.decision import Candidate, Decision, RejectionKind
from orchestrator.routing.router import Router
from shoal.errors import Reason, ShoalError


class WaitingRoom:
    """The queue as placement sees it; times in monotonic ms."""

    def __init__(self, config: HubConfig, router: Router) -> None:
        self._router = router
        self._queue = WaitingQueue(
            QueueLimits(config.max_queued, config.max_queued_prompt_bytes, config.max_queue_wait_ms)
        )

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def models(self) -> tuple[str, ...]:
        """Models that somebody waits for."""
        return self._queue.models

    def is_ahead(self, request: RouteRequest) -> bool:
        """Whether others wait already for the devices that the request wants."""
        return self._queue.holds(lane_of(request))

    def may_wait(self, active: ActiveRequest, decision: Decision, view: FleetView) -> bool:
        """Whether a request that no device takes now is worth to be kept.

        Yes when a device is full or loads the model. Who waits already goes on waiting
        when the device may come back, too.
        """
        failure = decision.failure
        if not active.route.may_wait:
            return False
        if failure is None or failure.reason is Reason.OVERLOADED:
            return True
        if failure.reason is not Reason.NO_DEVICE:
            return False
        waits = active.entry is not None
        return any(_may_come(each, view, waits=waits) for each in decision.candidates)

    def admit(self, active: ActiveRequest, view: FleetView, now: tuple[float, int]) -> list[Entry]:
        """Let the request wait; those put out for it. Raises ShoalError when it may not.

        `now`: monotonic and Unix time in ms.
        """
        now_ms, unix_ms = now
        request = active.route
        expected = self._router.backlog(request, view, unix_ms)
        size = Size(expected.prompt_tokens, expected.completion_tokens)
        started_unix_ms = unix_ms - (now_ms - active.started_ms)
        entry = entry_of(request, size, active.started_ms, started_unix_ms)
        if active.tried:
            entry = replace(entry, lane=replace(entry.lane, excluded=frozenset(active.tried)))
        backlog = Backlog(expected.gap_ms, expected.ttft_ms, expected.sure_share)
        put_out = self._queue.offer(entry, backlog, now_ms)
        active.entry, active.queued_ms = entry, now_ms
        return put_out

    def next(self, model: str, now_ms: float, blocked: Collection[Lane]) -> Entry | None:
        """Whose turn it is for the model; it waits until `leave`."""
        return self._queue.next(model, now_ms, blocked)

    def served(self, active: ActiveRequest, now_ms: float) -> None:
        """A device took the request."""
        if active.entry is not None:
            self._queue.take(active.entry.request_id, now_ms)
            _leave(active, now_ms)

    def ended(self, active: ActiveRequest, now_ms: float) -> None:
        """The request ended; nothing happens unless it waited."""
        if active.entry is not None:
            self._queue.remove(active.entry.request_id)
            _leave(active, now_ms)

    def expired(self, now_ms: float) -> list[tuple[Entry, ShoalError]]:
        """Who cannot be served in time any more, with the refusals."""
        return self._queue.expired(now_ms)

    def put_out(self, entry: Entry, now_ms: float) -> ShoalError:
        """The refusal of who was put out for another's sake."""
        return self._queue.full(entry, now_ms)


def lane_of(request: RouteRequest) -> Lane:
    """Requests of the same lane can be taken by the same devices."""
    return Lane(request.model, request.device, request.device_class)


def remaining(active: ActiveRequest, now_ms: float) -> RouteRequest:
    """The request of who waited: of its TTFT objective only the rest is left."""
    return rest_of(active.route, now_ms - active.started_ms)


def too_late(active: ActiveRequest, decision: Decision, now_ms: float) -> ShoalError | None:
    """The refusal of who waited and would now be served too late; None: in time."""
    entry, ttft_ms = active.entry, decision.foreseen_ttft_ms
    if entry is None:
        return None
    late_ms = now_ms + ttft_ms - entry.latest_first_token_ms
    if late_ms <= 0:
        return None
    return refusal.too_late(entry, now_ms - active.started_ms + ttft_ms, late_ms)


def _leave(active: ActiveRequest, now_ms: float) -> None:
    active.queue_ms += now_ms - active.queued_ms
    active.entry = None


def _may_come(candidate: Candidate, view: FleetView, *, waits: bool) -> bool:
    kind = None if candidate.rejection is None else candidate.rejection.kind
    if kind is RejectionKind.MODEL_LOADING:
        return True
    if not waits:
        return False
    device = view.devices.get(candidate.device_id)
    suspect = device is not None and device.state is DeviceState.SUSPECT
    return kind is RejectionKind.UNWELL or (kind is RejectionKind.STATE and suspect)
