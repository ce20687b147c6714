"""Places requests on devices, relays their frames, and moves them when a device fails.

Tokens reach the gateway once and in order, or the request ends with `failed`:
before its first token a request may move to another device, after it never.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import structlog

from orchestrator.fleet.view import DeviceId
from orchestrator.hub import convert
from orchestrator.hub.active import NOWHERE, ActiveRequest
from orchestrator.hub.finished_log import log_finished
from orchestrator.hub.hedging import Hedges
from orchestrator.hub.placing import DeviceLines, PlacementParts, Placer
from orchestrator.hub.prefilling import Prefills
from orchestrator.hub.session import GatewaySession
from orchestrator.hub.watch import HealthWatch
from orchestrator.queueing.entry import Entry, Lane
from orchestrator.routing.record import Actual
from shoal.errors import RETRYABLE_ELSEWHERE, Reason, ShoalError, invalid
from shoal.v1 import inference_pb2

_log = structlog.get_logger()


class Placement:
    """All running requests of this hub."""

    def __init__(self, parts: PlacementParts, lines: DeviceLines) -> None:
        self._config = parts.config
        self._router = parts.router
        self._views = parts.views
        self._recorder = parts.recorder
        self._clock = parts.clock
        self._lines = lines
        self.watch = HealthWatch(parts.config.health, parts.views, lines.send)
        self.prefills = Prefills(parts, lines)
        self._placer = Placer(parts, lines, self.watch, self._put_out, self.prefills)
        self.waiting = self._placer.waiting
        self.hedges = Hedges(parts, lines, self.watch)
        self._serving = False
        self._served_version = 0
        self._active: dict[str, ActiveRequest] = {}

    @property
    def num_active(self) -> int:
        """Requests that have not ended."""
        return len(self._active)

    @property
    def num_waiting(self) -> int:
        """Requests without a first token."""
        return sum(active.first_token_ms is None for active in self._active.values())

    def submit(self, session: GatewaySession, request: inference_pb2.GenerateRequest) -> None:
        """Place a request; every outcome is told to the session."""
        now_ms = self._clock.monotonic_ms()
        try:
            if request.request_id in self._active:
                raise invalid("request_id", f"request {request.request_id} is already running")
            route = convert.route_request(request)
        except ShoalError as error:
            session.send_update(convert.failed(request.request_id, error))
            return
        active = ActiveRequest(route, session, request, started_ms=now_ms)
        self._active[route.request_id] = active
        self._place(active)

    def cancel(self, session: GatewaySession, request_id: str) -> None:
        """Drop a request of this session on its device too; unknown ones ended already."""
        active = self._active.get(request_id)
        if active is not None and active.session is session:
            self._cancel(active)

    def cancel_session(self, session: GatewaySession) -> None:
        """Drop all requests of a session that ended; the waiting first, lest they are sent."""
        of_session = [a for a in self._active.values() if a.session is session]
        for active in sorted(of_session, key=lambda each: each.entry is None):
            self._cancel(active)

    def on_frame(
        self, device_id: DeviceId, epoch: int, frame: inference_pb2.InferenceFrame
    ) -> None:
        """Relay what a device produced: one frame to each gateway session concerned.

        The frame is passed on as it is when all of it goes to one session. Updates of
        requests that ended or moved are dropped.
        """
        now_ms = self._clock.monotonic_ms()
        num_relayed = 0
        by_session: dict[GatewaySession, list[inference_pb2.SequenceUpdate]] = {}
        for update in frame.updates:
            active = self._active.get(update.request_id)
            if active is None:
                prefilled = self.prefills.hears(device_id, epoch, update)
                if prefilled is not None:
                    self._place(prefilled)
                self.watch.on_stray(update, now_ms)
                continue
            if not active.is_on(device_id, epoch) and not self.hedges.hears(
                active, device_id, epoch, update
            ):
                continue
            if self._apply(active, update, now_ms):
                num_relayed += 1
                by_session.setdefault(active.session, []).append(update)
        if len(by_session) == 1 and num_relayed == len(frame.updates):
            frame.ClearField("load")
            next(iter(by_session)).send(frame)
            return
        for session, updates in by_session.items():
            session.send(inference_pb2.InferenceFrame(updates=updates))

    def on_lost(self, device_id: DeviceId, epoch: int) -> None:
        """The stream of this epoch is gone: move requests without a token, fail the others."""
        self.watch.renewed(device_id)
        self.hedges.lost(device_id, epoch)
        for active in self.prefills.lost(device_id, epoch):
            self._place(active)
        for active in [a for a in self._active.values() if a.is_on(device_id, epoch)]:
            self._retry(active, active.lost_error("the device's connection was lost"))

    def forget(self, device_id: DeviceId) -> None:
        """The device was removed: drop what was learned of it."""
        self._router.forget(device_id)
        self.watch.forget(device_id)

    def condition_of(self, device_id: DeviceId, model: str) -> str:
        """Why the device gets no requests for the model; empty: it does."""
        return self.watch.condition_of(device_id, model, self._clock.monotonic_ms())

    def tick(self) -> None:
        """End requests past their deadline; move or fail those of a device that is silent.

        Those who wait are sent where a device came back or loaded their model.
        """
        now_ms, unix_ms = self._clock.monotonic_ms(), self._clock.unix_ms()
        for active in list(self._active.values()):
            deadline = active.route.deadline_unix_ms
            if deadline and unix_ms > deadline:
                self._placer.cancel_on_device(active)
                message = "the request's deadline passed before its end"
                self._fail(active, ShoalError(Reason.DEADLINE_EXCEEDED, message))
        self.watch.tick(self._active.values(), now_ms)
        for active in list(self._active.values()):
            suspicion = active.lane.suspicion if active.lane is not None else None
            if suspicion is not None and (
                self._placer.may_move(active) or now_ms >= suspicion.lost_at_ms
            ):
                self._placer.cancel_on_device(active)
                self._retry(active, active.lost_error("the device made no progress"))
        self.hedges.tick(self._active.values(), now_ms)
        for active in self.prefills.late():
            self._place(active)
        if self.waiting:
            self._refuse_waiting(now_ms)
            if self._views.version != self._served_version:
                self._serve_waiting(self.waiting.models)
                self._served_version = self._views.version

    def _place(self, active: ActiveRequest) -> None:
        """Send to the best device that takes it, or let it wait, or fail."""
        error = self._placer.place(active)
        if error is not None:
            self._fail(active, error)

    def _serve_waiting(self, models: Iterable[str], num_places: float = math.inf) -> None:
        """Send those whose turn it is, as far as devices have room for them."""
        if self._serving:
            return
        self._serving = True
        try:
            for model in models:
                num_places -= self._serve_model(model, num_places)
        finally:
            self._serving = False

    def _serve_model(self, model: str, num_places: float) -> int:
        now_ms, num_served = self._clock.monotonic_ms(), 0
        blocked: set[Lane] = set()
        while num_served < num_places:
            entry = self.waiting.next(model, now_ms, blocked)
            if entry is None:
                break
            active = self._active[entry.request_id]
            self._place(active)
            if active.entry is not None:
                blocked.add(entry.lane)
            elif active.reservation is not None:
                num_served += 1
        return num_served

    def _refuse_waiting(self, now_ms: float) -> None:
        for entry, error in self.waiting.expired(now_ms):
            self._fail(self._active[entry.request_id], error)

    def _put_out(self, entry: Entry) -> None:
        active = self._active[entry.request_id]
        # It has left the queue already, for another's sake.
        error = self.waiting.put_out(entry, self._clock.monotonic_ms())
        self._fail(active, error)

    def _apply(
        self, active: ActiveRequest, update: inference_pb2.SequenceUpdate, now_ms: float
    ) -> bool:
        """Follow one update of a running request; whether it is to be passed on."""
        if update.HasField("failed"):
            error = ShoalError.from_wire(update.failed)
            if active.first_token_ms is None and error.reason in RETRYABLE_ELSEWHERE:
                self._retry(active, error)
                return False
            self._end(active, error.reason.value)
            return True
        is_first = active.first_token_ms is None and update.HasField("delta")
        if active.lane is not None and (is_first or active.first_token_ms is not None):
            active.lane.last_progress_ms = now_ms
        if is_first:
            active.first_token_ms = now_ms
            active.submission = None
            self.hedges.drop(active)
            if active.prediction is not None:
                actual_ms = now_ms - active.sent_ms
                self._router.observe_ttft(active.route.model, actual_ms, active.prediction)
            if active.reservation is not None:
                self._views.end_prefill(active.reservation)
        if update.HasField("finished"):
            # A verifier's pace says nothing of the device's own.
            if not update.finished.HasField("speculated"):
                self._router.observe(convert.outcome(active, update.finished))
            self._end(active, "finished", convert.actual(update.finished))
        return True

    def _retry(self, active: ActiveRequest, error: ShoalError) -> None:
        """The attempt failed: try another device, or fail when tokens flowed already."""
        if active.hedge is None and (
            active.first_token_ms is not None or active.attempt >= self._config.max_attempts
        ):
            self._fail(active, error)
            return
        self._release(active)
        self.watch.ended(active, error.reason.value, None, self._clock.monotonic_ms())
        active.lane = None
        active.last_error = error
        active.tried.add(active.device_id)
        if self.hedges.promote(active, error.reason.value):
            return
        if active.record is not None:
            active.record = active.record.with_failed_attempt(error.reason.value)
        _log.info(
            "request_moves",
            request_id=active.route.request_id,
            device_id=active.device_id,
            reason=error.reason.value,
            attempt=active.attempt,
        )
        # What the device still says of it is not to be heard.
        active.device_id = NOWHERE
        self._place(active)
        if self.waiting:
            self._serve_waiting([active.route.model])

    def _fail(self, active: ActiveRequest, error: ShoalError) -> None:
        active.session.send_update(convert.failed(active.route.request_id, error))
        self._end(active, error.reason.value)

    def _cancel(self, active: ActiveRequest) -> None:
        self._placer.cancel_on_device(active)
        self._end(active, Reason.CANCELLED.value)

    def _release(self, active: ActiveRequest) -> None:
        if active.reservation is not None:
            prefill_ended = active.first_token_ms is not None
            self._views.release(active.reservation, prefill_ended=prefill_ended)
            active.reservation = None

    def _end(self, active: ActiveRequest, outcome: str, actual: Actual | None = None) -> None:
        now_ms = self._clock.monotonic_ms()
        held_place = active.reservation is not None
        self.hedges.drop(active)
        self.prefills.drop(active)
        self._release(active)
        self.watch.ended(active, outcome, actual, now_ms)
        self.waiting.ended(active, now_ms)
        del self._active[active.route.request_id]
        if active.record is not None:
            record = active.record
            if actual is None and outcome != Reason.CANCELLED.value:
                record = record.with_failed_attempt(outcome)
            record = replace(record, queue_ms=active.queue_ms, shared_prefill=active.shared_prefill)
            self._recorder.keep(record.ended(outcome, self._clock.unix_ms(), actual))
        log_finished(active, outcome, actual, now_ms)
        if held_place and self.waiting:
            self._serve_waiting([active.route.model], num_places=1)
