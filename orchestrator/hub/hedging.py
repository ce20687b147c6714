"""Hedging: a second device gets a request whose first is late; the first token decides.

Off unless the request or the hub asks for it. Only a request without a token is hedged,
once, after a multiple of its predicted TTFT, on a device of the fleet that has a free slot;
the hub knows no cloud, so what must stay local does. At most a share of the running
requests is doubled at once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import structlog

from orchestrator.fleet.health.lanes import Lane
from orchestrator.fleet.view import DeviceId, num_occupied
from orchestrator.fleet.view_store import Reservation
from orchestrator.hub import convert
from orchestrator.hub.active import ActiveRequest
from orchestrator.hub.placing import DeviceLines, PlacementParts
from orchestrator.hub.watch import HealthWatch
from orchestrator.routing.decision import Candidate, Decision
from orchestrator.routing.record import Attempt
from shoal.v1 import device_pb2, inference_pb2

_log = structlog.get_logger()

# How a lost race is recorded.
OUTRUN = "outrun"
# A hedge sooner than this costs more than the wait that it saves.
MIN_WAIT_MS = 250.0


@dataclass(frozen=True, slots=True)
class Hedge:
    """The second attempt of a request that has no token yet."""

    candidate: Candidate
    epoch: int
    lane: Lane
    reservation: Reservation
    sent_ms: float
    sent_unix_ms: int
    reason: str

    @property
    def device_id(self) -> DeviceId:
        """Where it was sent."""
        return self.candidate.device_id


class Hedges:
    """Begins hedges on the hub's timer and ends each race."""

    def __init__(self, parts: PlacementParts, lines: DeviceLines, watch: HealthWatch) -> None:
        self._config = parts.config
        self._router = parts.router
        self._views = parts.views
        self._clock = parts.clock
        self._lines = lines
        self._watch = watch
        self._hedged: dict[str, ActiveRequest] = {}

    def __len__(self) -> int:
        return len(self._hedged)

    def tick(self, running: Collection[ActiveRequest], now_ms: float) -> None:
        """Begin the hedges that are due, as far as the share allows."""
        most = max(1, int(self._config.hedge_share * len(running)))
        for active in running:
            if len(self._hedged) >= most:
                return
            if self._is_due(active, now_ms):
                self._begin(active, now_ms)

    def hears(
        self, active: ActiveRequest, device_id: DeviceId, epoch: int,
        update: inference_pb2.SequenceUpdate,
    ) -> bool:  # fmt: skip
        """Whether an update of the second device is the request's now: its first token won."""
        hedge = active.hedge
        if hedge is None or (hedge.device_id, hedge.epoch) != (device_id, epoch):
            return False
        if update.HasField("failed"):
            self._finish(active)
            return False
        if not (update.HasField("delta") or update.HasField("finished")):
            return False
        self._cancel_on(active, active.device_id)
        if active.lane is not None:
            now_ms = self._clock.monotonic_ms()
            self._watch.check(active.lane, active.expected_ttft_ms, now_ms)
        self.promote(active, OUTRUN)
        return True

    def promote(self, active: ActiveRequest, failed: str) -> bool:
        """The first attempt is over, because of `failed`: the second, if any, takes its place."""
        hedge = active.hedge
        if hedge is None:
            return False
        if active.reservation is not None:
            self._views.release(active.reservation, prefill_ended=False)
        self._hedged.pop(active.route.request_id)
        active.hedge, active.attempt = None, active.attempt + 1
        active.device_id, active.epoch, active.lane = hedge.device_id, hedge.epoch, hedge.lane
        active.reservation, active.sent_ms = hedge.reservation, hedge.sent_ms
        active.prediction = hedge.candidate.prediction
        if active.record is not None:
            attempt = Attempt(hedge.device_id, hedge.candidate.device_name, hedge.sent_unix_ms)
            active.record = active.record.with_failed_attempt(failed).with_attempt(attempt)
        device = self._views.get(hedge.device_id)
        if device is not None:
            self._watch.sent(active, device)
            placed = convert.placed(device, active.prediction, hedge.reason, active.attempt)
            active.session.send_update(
                inference_pb2.SequenceUpdate(request_id=active.route.request_id, placed=placed)
            )
        return True

    def drop(self, active: ActiveRequest) -> None:
        """The first attempt won, or the request ended: cancel the second, if any."""
        hedge = active.hedge
        if hedge is None:
            return
        self._cancel_on(active, hedge.device_id)
        if active.record is not None and active.record.attempts:
            *earlier, last = active.record.attempts
            lost = Attempt(hedge.device_id, hedge.candidate.device_name, hedge.sent_unix_ms, OUTRUN)
            active.record = active.record.with_attempts((*earlier, lost, last))
        self._finish(active)

    def lost(self, device_id: DeviceId, epoch: int) -> None:
        """The device's stream is gone, and with it the hedges there."""
        for active in list(self._hedged.values()):
            hedge = active.hedge
            if hedge is not None and (hedge.device_id, hedge.epoch) == (device_id, epoch):
                self._finish(active)

    def _is_due(self, active: ActiveRequest, now_ms: float) -> bool:
        after = active.route.hedge_after
        if after is None:
            after = self._config.hedge_after
        if after <= 0 or active.hedge is not None or active.was_hedged:
            return False
        if active.first_token_ms is not None or active.lane is None or active.route.device:
            return False
        return now_ms - active.sent_ms >= max(MIN_WAIT_MS, after * active.expected_ttft_ms)

    def _begin(self, active: ActiveRequest, now_ms: float) -> None:
        tried = frozenset({*active.tried, active.device_id})
        view, unix_ms = self._views.fleet, self._clock.unix_ms()
        decision = self._router.route(active.route, view, exclude=tried, now_ms=unix_ms)
        chosen = decision.chosen
        if chosen is None or active.submission is None or not self._has_slot(chosen, decision):
            return
        epoch = self._lines.send(
            chosen.device_id,
            device_pb2.HubFrame(inference=inference_pb2.InferenceCommand(submit=active.submission)),
        )
        if epoch is None:
            return
        prediction = chosen.prediction
        num_tokens = prediction.prompt_tokens - prediction.cached_tokens if prediction else 0
        reservation = Reservation(chosen.device_id, active.route.model, num_tokens, unix_ms)
        self._views.reserve(reservation)
        waited_ms = now_ms - active.sent_ms
        active.hedge = Hedge(
            chosen,
            epoch,
            self._watch.lane(chosen.device_id, active.route.model),
            reservation,
            now_ms,
            unix_ms,
            f"{decision.reason}; hedged after {waited_ms:.0f} ms without a token",
        )
        active.was_hedged = True
        self._hedged[active.route.request_id] = active
        _log.info(
            "request_hedged",
            request_id=active.route.request_id,
            device_id=active.device_id,
            second_device_id=chosen.device_id,
            waited_ms=round(waited_ms, 1),
            expected_ms=round(active.expected_ttft_ms, 1),
        )

    def _has_slot(self, chosen: Candidate, decision: Decision) -> bool:
        device = self._views.get(chosen.device_id)
        model = None if device is None else device.models.get(decision.model)
        return (
            device is not None and model is not None and num_occupied(device, model) < model.slots
        )

    def _finish(self, active: ActiveRequest) -> None:
        hedge, active.hedge = active.hedge, None
        self._hedged.pop(active.route.request_id, None)
        if hedge is not None:
            self._views.release(hedge.reservation, prefill_ended=False)

    def _cancel_on(self, active: ActiveRequest, device_id: DeviceId) -> None:
        command = inference_pb2.InferenceCommand()
        command.cancel.request_id = active.route.request_id
        self._lines.send(device_id, device_pb2.HubFrame(inference=command))
