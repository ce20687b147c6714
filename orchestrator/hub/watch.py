"""Watches the devices' health for placement: feeds the core, shows its judgement, probes.

A suspected device gets one probe, a prompt of one token that the hub makes up: once the
device serves again its answer proves it, without risking a request of a user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from orchestrator.config import HealthTerms
from orchestrator.fleet.health.bounds import first_token_bound_ms, next_token_bound_ms
from orchestrator.fleet.health.core import Health
from orchestrator.fleet.health.lanes import Lane, Work
from orchestrator.fleet.health.outliers import Outcome, slowness
from orchestrator.fleet.view import DeviceId, DeviceView, Unwell, num_occupied
from orchestrator.fleet.view_store import ViewStore
from orchestrator.hub.active import ActiveRequest
from orchestrator.routing.record import Actual
from shoal.errors import Reason
from shoal.v1 import device_pb2, inference_pb2

_log = structlog.get_logger()

# Failures that tell of the device; refusals and faults of the request do not.
_FAULTS = frozenset({Reason.DEVICE_LOST.value, Reason.ENGINE_CRASHED.value, Reason.INTERNAL.value})
# What our engine prefills at most before running sequences go on: four chunks.
MAX_PREFILL_BETWEEN_TOKENS = 512
# A probe that was refused is sent again after this time.
PROBE_AGAIN_MS = 2_000.0


@dataclass(slots=True)
class _Probe:
    lane: Lane
    request_id: str
    sent_ms: float
    expected_ms: float
    # Not None: it failed, and is due again.
    again_ms: float | None = None


class HealthWatch:
    """Between placement and the health core; `tick` is called on the hub's timer."""

    def __init__(
        self,
        terms: HealthTerms,
        views: ViewStore,
        send: Callable[[DeviceId, device_pb2.HubFrame], int | None],
    ) -> None:
        self._terms = terms
        self._health = Health(terms)
        self._views = views
        self._send = send
        self._probes: dict[Lane, _Probe] = {}
        self._lane_of_probe: dict[str, Lane] = {}
        self._num_probes = 0

    @property
    def condition(self) -> str:
        """Why the hub suspects itself; empty: it does not."""
        return self._health.brake.text

    def condition_of(self, device_id: DeviceId, model: str, now_ms: float) -> str:
        """Why the device gets no requests for the model; empty: it does."""
        return self._health.condition(device_id, model, now_ms)

    def sent(self, active: ActiveRequest, device: DeviceView) -> None:
        """The request goes to the device: what to expect of it from here on."""
        lane = active.lane = self._health.lane(device.device_id, active.route.model)
        prediction = active.prediction
        if prediction is None:
            active.expected_ttft_ms = 0.0
        else:
            cached_ms = _prefill_ms(device, lane.model, prediction.cached_tokens)
            active.expected_ttft_ms = prediction.ttft_ms + cached_ms
        active.ahead_tokens = device.in_flight_prefill_tokens.get(lane.model, 0)
        model = device.models.get(lane.model)
        active.ahead_requests = 0 if model is None else num_occupied(device, model)
        active.slow_known = lane.outcomes.num_slow_in_row
        active.first_bound_ms = first_token_bound_ms(
            self._terms, active.expected_ttft_ms, proven=lane.proven
        )

    def lane(self, device_id: DeviceId, model: str) -> Lane:
        """What is known of the device and model."""
        return self._health.lane(device_id, model)

    def check(self, lane: Lane, expected_ms: float, now_ms: float) -> None:
        """A request was taken from the lane before it showed anything: a probe shall tell."""
        if lane.suspicion is None and lane not in self._probes:
            self._probe(lane, expected_ms, now_ms)

    def ended(
        self, active: ActiveRequest, outcome: str, actual: Actual | None, now_ms: float
    ) -> None:
        """The attempt ended on its device with `outcome`, as in decision records.

        What is lost to silence is not counted as a failure too: the suspicion answers it.
        """
        if active.lane is None or active.lane.suspicion is not None:
            return
        if outcome in _FAULTS:
            self._health.ended(active.lane, Outcome(now_ms, failed=True))
        elif actual is not None and active.first_token_ms is not None:
            tpot_ms = active.prediction.tpot_ms if active.prediction else 0.0
            ttft_ms = active.first_token_ms - active.sent_ms
            ratio = slowness(ttft_ms, active.expected_ttft_ms, actual.tpot_ms, tpot_ms)
            outcome_of_lane = Outcome(now_ms, False, ratio, active.slow_known)
            self._health.ended(active.lane, outcome_of_lane)

    def renewed(self, device_id: DeviceId, model: str | None = None) -> None:
        """The device's stream ended or began, or a model was loaded: suspicions are void."""
        for lane in self._health.renewed(device_id, model):
            self._drop_probe(lane)
            self._show(lane, 0.0)

    def forget(self, device_id: DeviceId) -> None:
        """The device was removed."""
        for lane in [lane for lane in self._probes if lane.device_id == device_id]:
            self._drop_probe(lane)
        self._health.forget(device_id)

    def on_stray(self, update: inference_pb2.SequenceUpdate, now_ms: float) -> None:
        """An update of no running request: maybe a probe's."""
        lane = self._lane_of_probe.get(update.request_id)
        if lane is None:
            return
        answered = update.HasField("delta") or update.HasField("finished")
        if answered:
            lane.last_progress_ms = now_ms
        if lane.suspicion is not None and update.HasField("failed"):
            self._probes[lane].again_ms = now_ms + PROBE_AGAIN_MS
        elif lane.suspicion is None and (answered or update.HasField("failed")):
            self._drop_probe(lane)

    def tick(self, running: Iterable[ActiveRequest], now_ms: float) -> None:
        """Judge, and show the judgement in the fleet's view and in the log."""
        work = self._work(running)
        if not work and self._health.is_idle:
            return
        judgement = self._health.judge(work, self._views.fleet, now_ms)
        for lane in judgement.changed:
            self._show(lane, now_ms)
            if lane.suspicion is None:
                self._drop_probe(lane)
            elif lane not in self._probes:
                self._probe(lane, lane.suspicion.expected_ms, now_ms)
        for probe in list(self._probes.values()):
            if probe.again_ms is not None and now_ms >= probe.again_ms:
                self._drop_probe(probe.lane)
                self._probe(probe.lane, probe.expected_ms, now_ms)
        if judgement.brake:
            _log.error("health_brake_on", why=judgement.brake)
        elif judgement.brake is not None:
            _log.warning("health_brake_off")

    def check_integrity(self) -> None:
        """Raise when the view does not show what was judged."""
        self._health.check_integrity()
        for lane in self._health.lanes():
            device = self._views.get(lane.device_id)
            model = None if device is None else device.models.get(lane.model)
            if model is not None and bool(model.unwell) == lane.fit:
                raise AssertionError(f"{lane.device_id} {lane.model}: the view shows another state")

    def _work(self, running: Iterable[ActiveRequest]) -> list[Work]:
        """The work of each lane that is due first; of a lane with streams, their next token."""
        streams: dict[Lane, ActiveRequest] = {}
        due = {probe.lane: self._probe_work(probe) for probe in self._probes.values()}
        for active in running:
            lane = active.lane
            if lane is None:
                continue
            if active.first_token_ms is not None:
                streams.setdefault(lane, active)
                continue
            work = Work(lane, active.sent_ms, active.first_bound_ms, active.expected_ttft_ms)
            known = due.get(lane)
            if known is None or work.due_ms < known.due_ms:
                due[lane] = work
        for lane, active in streams.items():
            due[lane] = self._stream_work(lane, active)
        return list(due.values())

    def _probe_work(self, probe: _Probe) -> Work:
        bound_ms = first_token_bound_ms(self._terms, probe.expected_ms, proven=probe.lane.proven)
        return Work(probe.lane, probe.sent_ms, bound_ms, probe.expected_ms)

    def _stream_work(self, lane: Lane, active: ActiveRequest) -> Work:
        device = self._views.get(lane.device_id)
        prefill_ms = 0.0
        if device is not None:
            tokens = device.in_flight_prefill_tokens.get(lane.model, 0)
            prefill_ms = _prefill_ms(device, lane.model, min(tokens, MAX_PREFILL_BETWEEN_TOKENS))
        tpot_ms = active.prediction.tpot_ms if active.prediction else 0.0
        bound_ms = next_token_bound_ms(self._terms, tpot_ms, prefill_ms)
        return Work(lane, active.sent_ms, bound_ms, tpot_ms + prefill_ms)

    def _show(self, lane: Lane, now_ms: float) -> None:
        condition = lane.condition(now_ms)
        unwell = None if lane.fit else Unwell(condition, ejected=lane.suspicion is None)
        self._views.set_unwell(lane.device_id, lane.model, unwell)
        _log.info(
            "device_health",
            device_id=lane.device_id,
            model=lane.model,
            condition=condition or "well",
        )

    def _probe(self, lane: Lane, expected_ms: float, now_ms: float) -> None:
        self._num_probes += 1
        request_id = f"shoal-probe-{self._num_probes}"
        request = inference_pb2.GenerateRequest(
            request_id=request_id,
            model=lane.model,
            tenant="shoal-probe",
            text="a",
            max_tokens=1,
            sampling=inference_pb2.Sampling(temperature=0.0),
        )
        command = inference_pb2.InferenceCommand(submit=request)
        if self._send(lane.device_id, device_pb2.HubFrame(inference=command)) is not None:
            self._probes[lane] = _Probe(lane, request_id, now_ms, expected_ms)
            self._lane_of_probe[request_id] = lane

    def _drop_probe(self, lane: Lane) -> None:
        probe = self._probes.pop(lane, None)
        if probe is not None:
            del self._lane_of_probe[probe.request_id]


def _prefill_ms(device: DeviceView, model_name: str, num_tokens: int) -> float:
    """Time to compute so many prompt tokens by the device's own measurement; 0: not known."""
    model = device.models.get(model_name)
    if model is None or model.prefill_tokens_per_s <= 0:
        return 0.0
    return 1000.0 * num_tokens / model.prefill_tokens_per_s
