"""One simulation: arrivals, devices and outages in the order of a virtual clock."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable
from itertools import count

from orchestrator.fleet.lifecycle_events import Effect
from orchestrator.fleet.view import DeviceId, ServedModel
from orchestrator.request import RouteRequest
from orchestrator.routing.estimator import Outcome
from orchestrator.simulator.device import SimDevice, served_models
from orchestrator.simulator.engine import Sequence
from orchestrator.simulator.fleet_file import FleetSpec
from orchestrator.simulator.hub_queue import TICK_MS, HubQueue
from orchestrator.simulator.outages import Outage, Outages, apply_states
from orchestrator.simulator.policies import Policy, placer
from orchestrator.simulator.result import Ended, RunResult
from orchestrator.simulator.workload import Job, SimModel
from shoal.errors import ShoalError

MAX_ATTEMPTS = 3
# Four bytes of text a token, as the gateway sees a prompt.
_BYTES_PER_TOKEN = 4

_Event = tuple[SimDevice, int] | Outage | HubQueue | None


class Simulation:
    """Runs a workload over a fleet under one policy; the same for the same seed."""

    def __init__(self, fleet: FleetSpec, models: dict[str, SimModel], policy: Policy, seed: int):
        self._result = RunResult(policy, seed)
        self._devices = _build(fleet, models, seed)
        self._policy = policy
        self._placer = placer(policy, self._devices, seed)
        self._result.devices = list(self._devices.values())
        rates = fleet.failures_per_device_hour, fleet.outage_s
        self._outages = Outages(self._result.devices, *rates, seed)
        self._numbers = count()
        # (time, number, device and its version | outage | queue | None: the next failure)
        self._events: list[tuple[float, int, _Event]] = []
        # Who waits in the hub, and whether it has a tick to come.
        self._waiting: dict[str, Sequence] = {}
        self._ticks = False
        self._tries: dict[str, frozenset[DeviceId]] = {}

    def run(self, jobs: Iterable[Job]) -> RunResult:
        """Run to the end of the last request."""
        result = self._result
        self._push(self._outages.next_failure_ms(0.0), None)
        first_ms: float | None = None
        for number, job in enumerate(jobs):
            self._run_until(job.arrival_ms)
            first_ms = job.arrival_ms if first_ms is None else first_ms
            result.span_ms = job.arrival_ms - first_ms
            self._place(Sequence(job, f"r{number}", job.arrival_ms), job.arrival_ms)
        last_ms = result.span_ms + (first_ms or 0.0)
        self._run_until(float("inf"), no_failures_after_ms=last_ms)
        result.num_failures = self._outages.num_failures
        return result

    def _run_until(self, until_ms: float, no_failures_after_ms: float = float("inf")) -> None:
        while self._events and self._events[0][0] <= until_ms:
            now_ms, _, event = heapq.heappop(self._events)
            match event:
                case None:
                    if now_ms <= no_failures_after_ms:
                        self._fail_one(now_ms)
                case HubQueue():
                    self._tick(event, now_ms)
                case Outage():
                    effects, next_ms = self._outages.tick(event, now_ms)
                    self._push(next_ms, event)
                    self._carry_out(event.device, effects, now_ms, back=next_ms is None)
                case (device, version):
                    if device.version == version:
                        self._step(device, now_ms)

    def _push(self, at_ms: float | None, event: _Event) -> None:
        if at_ms is not None:
            heapq.heappush(self._events, (at_ms, next(self._numbers), event))

    def _request(self, sequence: Sequence) -> RouteRequest:
        job = sequence.job
        return RouteRequest(
            request_id=sequence.request_id,
            tenant=job.tenant,
            model=job.model.name,
            prompt_bytes=job.prompt_tokens * _BYTES_PER_TOKEN,
            # A client's bound is seldom tight; the router must learn the lengths.
            max_tokens=None,
            slo=job.slo,
            objective=self._policy.objective,
            priority=job.priority,
        )

    def _place(self, sequence: Sequence, now_ms: float) -> None:
        request = self._request(sequence)
        tried = self._tries.get(sequence.request_id, frozenset())
        try:
            device_id = self._placer.place(request, tried, now_ms)
            if device_id is None:
                self._wait(sequence, request, tried, now_ms)
                return
        except ShoalError:
            self._end(sequence, "", failed="refused")
            return
        self._send(sequence, device_id, now_ms)

    def _wait(
        self, sequence: Sequence, request: RouteRequest, tried: frozenset[DeviceId], now_ms: float
    ) -> None:
        queue = self._placer.queue
        if queue is None:
            self._end(sequence, "", failed="refused")
            return
        put_out = queue.wait(request, tried, sequence.job.arrival_ms, now_ms)
        self._waiting[sequence.request_id] = sequence
        self._result.num_waited += 1
        for request_id in put_out:
            self._end(self._waiting.pop(request_id), "", failed="refused")
        if not self._ticks:
            self._ticks = True
            self._push(now_ms + TICK_MS, queue)

    def _tick(self, queue: HubQueue, now_ms: float) -> None:
        """Refuse who can no longer be served in time; send where devices have come back."""
        for request_id in queue.expire(now_ms):
            self._end(self._waiting.pop(request_id), "", failed="refused")
        for model in queue.models:
            self._serve(queue, model, math.inf, now_ms)
        self._ticks = len(queue) > 0
        if self._ticks:
            self._push(now_ms + TICK_MS, queue)

    def _serve(self, queue: HubQueue, model: str, num_places: float, now_ms: float) -> None:
        for request_id, device_id in queue.serve(model, num_places, now_ms):
            sequence = self._waiting.pop(request_id)
            if device_id is None:
                self._end(sequence, "", failed="refused")
            else:
                self._send(sequence, device_id, now_ms)

    def _send(self, sequence: Sequence, device_id: DeviceId, now_ms: float) -> None:
        sequence.arrived_ms = now_ms
        device = self._devices[device_id]
        self._push(device.submit(sequence, now_ms), (device, device.version))
        self._placer.changed(device)

    def _step(self, device: SimDevice, now_ms: float) -> None:
        ended, next_ms = device.step(now_ms)
        self._push(next_ms, (device, device.version))
        if ended:
            self._placer.changed(device)
        for sequence in ended:
            self._finish(sequence, device, now_ms)
        queue = self._placer.queue
        if queue is not None and len(queue):
            for sequence in ended:
                self._serve(queue, sequence.job.model.name, 1, now_ms)

    def _finish(self, sequence: Sequence, device: SimDevice, now_ms: float) -> None:
        job = sequence.job
        decode_ms = now_ms - sequence.first_token_ms
        tpot_ms = decode_ms / (job.completion_tokens - 1) if job.completion_tokens > 1 else 0.0
        self._end(sequence, device.kind.device_class, now_ms=now_ms, tpot_ms=tpot_ms)
        self._placer.observe(
            Outcome(
                device_id=device.device_id,
                model=job.model.name,
                prompt_bytes=job.prompt_tokens * _BYTES_PER_TOKEN,
                prompt_tokens=job.prompt_tokens,
                cached_tokens=0,
                completion_tokens=job.completion_tokens,
                queue_ms=sequence.admitted_ms - sequence.arrived_ms,
                ttft_ms=sequence.first_token_ms - sequence.arrived_ms,
                tpot_ms=tpot_ms,
                mean_batch=sequence.mean_batch,
                joules=sequence.joules,
                ahead_tokens=sequence.ahead_tokens,
                ahead_requests=sequence.ahead_requests,
            )
        )

    def _end(
        self,
        sequence: Sequence,
        device_class: str,
        *,
        now_ms: float = 0.0,
        tpot_ms: float = 0.0,
        failed: str = "",
    ) -> None:
        self._tries.pop(sequence.request_id, None)
        job = sequence.job
        if failed:
            self._result.ended.append(Ended(job, device_class, failed))
            return
        self._result.ended.append(
            Ended(
                job=job,
                device_class=device_class,
                ttft_ms=sequence.first_token_ms - job.arrival_ms,
                tpot_ms=tpot_ms,
                latency_ms=now_ms - job.arrival_ms,
                joules=sequence.joules,
            )
        )

    def _fail_one(self, now_ms: float) -> None:
        self._push(self._outages.next_failure_ms(now_ms), None)
        begun = self._outages.begin(now_ms)
        if begun is None:
            return
        outage, effects = begun
        outage.device.pause(now_ms)
        self._push(now_ms, outage)
        self._carry_out(outage.device, effects, now_ms)

    def _carry_out(
        self, device: SimDevice, effects: tuple[Effect, ...], now_ms: float, *, back: bool = False
    ) -> None:
        lost = apply_states(device, effects)
        sequences = device.fail(now_ms) if lost or back else []
        device.paused = device.paused and not back
        self._placer.changed(device)
        for sequence in sequences:
            self._move(sequence, device, now_ms)

    def _move(self, sequence: Sequence, device: SimDevice, now_ms: float) -> None:
        """As the hub does: before its first token a request moves, after it never."""
        tried = self._tries.get(sequence.request_id, frozenset()) | {device.device_id}
        if sequence.first_token_ms > 0 or len(tried) >= MAX_ATTEMPTS:
            self._end(sequence, device.kind.device_class, failed="device_lost")
            return
        self._tries[sequence.request_id] = tried
        self._result.num_moved += 1
        self._place(Sequence(sequence.job, sequence.request_id, now_ms), now_ms)


def _build(fleet: FleetSpec, models: dict[str, SimModel], seed: int) -> dict[DeviceId, SimDevice]:
    rng = random.Random(seed)  # noqa: S311
    devices = {}
    for kind in fleet.kinds:
        served: dict[str, ServedModel] = served_models(kind, models)
        for number in range(kind.count):
            device_id = DeviceId(f"{kind.name}-{number}")
            factor = rng.lognormvariate(0.0, kind.speed_spread)
            devices[device_id] = SimDevice(device_id, kind, served, factor)
    return devices
