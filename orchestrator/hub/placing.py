"""Sends a request to the best device that takes it, or lets it wait for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from orchestrator.config import HubConfig
from orchestrator.fleet.view import DeviceId
from orchestrator.fleet.view_store import Reservation, ViewStore
from orchestrator.hub import convert
from orchestrator.hub.active import ActiveRequest
from orchestrator.hub.clock import Clock
from orchestrator.hub.records import Recorder
from orchestrator.hub.waiting import WaitingRoom, remaining, too_late
from orchestrator.hub.watch import HealthWatch
from orchestrator.queueing.entry import Entry
from orchestrator.routing.decision import Decision
from orchestrator.routing.record import Attempt, DecisionRecord
from orchestrator.routing.router import Router
from shoal.errors import Reason, ShoalError
from shoal.v1 import device_pb2, inference_pb2

if TYPE_CHECKING:
    from orchestrator.hub.prefilling import Prefills


class DeviceLines(Protocol):
    """What placement needs of the devices' streams."""

    def send(self, device_id: DeviceId, frame: device_pb2.HubFrame) -> int | None:
        """Send on the device's current stream; its epoch, or None when impossible."""


@dataclass(frozen=True, slots=True)
class PlacementParts:
    """What placement works on."""

    config: HubConfig
    router: Router
    views: ViewStore
    recorder: Recorder
    clock: Clock


class Placer:
    """Routes, sends and reserves, all before the next request is looked at."""

    def __init__(
        self,
        parts: PlacementParts,
        lines: DeviceLines,
        watch: HealthWatch,
        put_out: Callable[[Entry], None],
        prefills: Prefills,
    ) -> None:
        self._router = parts.router
        self._views = parts.views
        self._clock = parts.clock
        self._lines = lines
        self._watch = watch
        # Told of each who loses its place in the queue to another.
        self._put_out = put_out
        self.waiting = WaitingRoom(parts.config, parts.router)
        self._prefills = prefills
        self._max_attempts = parts.config.max_attempts

    def place(self, active: ActiveRequest) -> ShoalError | None:
        """Send the request, or let it wait; the failure when neither is possible.

        One that waits already keeps its place when no device takes it now.
        """
        waits = active.entry is not None
        route = active.route
        if waits:
            route = remaining(active, self._clock.monotonic_ms())
        while True:
            view = self._views.fleet
            decision = self._router.route(
                route, view, exclude=frozenset(active.tried), now_ms=self._clock.unix_ms()
            )
            chosen = decision.chosen
            if active.record is None or chosen is not None:
                attempts = () if active.record is None else active.record.attempts
                active.record = DecisionRecord(decision, active.route.tenant, attempts)
            if waits and (error := too_late(active, decision, self._clock.monotonic_ms())):
                return error
            if chosen is None:
                if self.waiting.may_wait(active, decision, view):
                    return self._wait(active)
                return _failure(active, decision)
            # Nobody goes before those who wait for the same devices, but for a request
            # that was on one already.
            if self.waiting and not waits and not active.attempt and self.waiting.is_ahead(route):
                return self._wait(active)
            if self._prefills.begin(active, decision, view):
                return None
            active.prediction = chosen.prediction
            if self._send(active, chosen.device_id, decision.reason):
                return None
            active.tried.add(chosen.device_id)

    def may_move(self, active: ActiveRequest) -> bool:
        """Whether it has no token yet and another device would take it, now or soon."""
        if active.first_token_ms is not None or active.attempt >= self._max_attempts:
            return False
        tried = frozenset({*active.tried, active.device_id})
        now_ms, view = self._clock.unix_ms(), self._views.fleet
        decision = self._router.route(active.route, view, exclude=tried, now_ms=now_ms)
        return bool(decision.ranked) or self.waiting.may_wait(active, decision, view)

    def cancel_on_device(self, active: ActiveRequest) -> None:
        """Tell the device that has it to drop it."""
        cancel = inference_pb2.CancelRequest(request_id=active.route.request_id)
        command = inference_pb2.InferenceCommand(cancel=cancel)
        self._lines.send(active.device_id, device_pb2.HubFrame(inference=command))

    def _wait(self, active: ActiveRequest) -> ShoalError | None:
        if active.entry is not None:
            return None
        now_ms = self._clock.monotonic_ms()
        try:
            put_out = self.waiting.admit(active, self._views.fleet, (now_ms, self._clock.unix_ms()))
        except ShoalError as error:
            return error
        for entry in put_out:
            self._put_out(entry)
        return None

    def _send(self, active: ActiveRequest, device_id: DeviceId, reason: str) -> bool:
        active.attempt += 1
        device = self._views.get(device_id)
        if device is None or active.submission is None:
            return False
        command = inference_pb2.InferenceCommand(submit=active.submission)
        epoch = self._lines.send(device_id, device_pb2.HubFrame(inference=command))
        if epoch is None:
            return False
        prediction = active.prediction
        active.device_id, active.epoch = device_id, epoch
        active.sent_ms = self._clock.monotonic_ms()
        self._watch.sent(active, device)
        active.reservation = Reservation(
            device_id,
            active.route.model,
            prediction.prompt_tokens - prediction.cached_tokens if prediction else 0,
            self._clock.unix_ms(),
        )
        self._views.reserve(active.reservation)
        if active.entry is not None:
            self.waiting.served(active, active.sent_ms)
        if active.record is not None:
            attempt = Attempt(device_id, device.name, self._clock.unix_ms())
            active.record = active.record.with_attempt(attempt)
        computed = active.shared_prefill
        if computed is not None and computed.get("outcome") == "finished":
            reason = f"{reason}; {computed['device_name']} computed its prompt"
        if active.queue_ms:
            reason = f"{reason}; it waited {active.queue_ms:.0f} ms for a device with room"
        update = inference_pb2.SequenceUpdate(
            request_id=active.route.request_id,
            placed=convert.placed(device, prediction, reason, active.attempt),
        )
        update.placed.queue_ms = active.queue_ms
        active.session.send_update(update)
        return True


def _failure(active: ActiveRequest, decision: Decision) -> ShoalError:
    # What the last device said explains more than that no other is left.
    fallback = ShoalError(Reason.NO_DEVICE, decision.reason)
    return active.last_error or decision.failure or fallback
