"""One simulation: arrivals, devices and outages in the order of a virtual clock."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from orchestrator.fleet.lifecycle_events import Effect
from orchestrator.fleet.view import DeviceId, ServedModel
from orchestrator.request import RouteRequest
from orchestrator.routing.estimator import Outcome
from orchestrator.simulator.device import SimDevice, served_models
from orchestrator.simulator.engine import Sequence
from orchestrator.simulator.fleet_file import FleetSpec
from orchestrator.simulator.outages import Outage, Outages, apply_states
from orchestrator.simulator.policies import Policy, placer
from orchestrator.simulator.workload import Job, SimModel

MAX_ATTEMPTS = 3
# Four bytes of text a token, as the gateway sees a prompt.
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of one request; times 0 when it failed. `latency_ms`: to the last token."""

    job: Job
    device_class: str
    failed: str = ""
    ttft_ms: float = 0.0
    tpot_ms: float = 0.0
    latency_ms: float = 0.0
    joules: float = 0.0

    @property
    def met_slo(self) -> bool:
        """Served within the stated objective."""
        slo = self.job.slo
        return (
            not self.failed
            and (slo.ttft_ms is None or self.ttft_ms <= slo.ttft_ms)
            and (slo.tpot_ms is None or self.tpot_ms <= slo.tpot_ms)
        )


@dataclass(slots=True)
class RunResult:
    """All requests of a run and what the devices did. `span_ms`: first to last arrival."""

    policy: Policy
    seed: int
    ended: list[Ended] = field(default_factory=list)
    devices: list[SimDevice] = field(default_factory=list)
    span_ms: float = 0.0
    num_failures: int = 0
    num_moved: int = 0


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
        # (time, number, device and its version | outage | None: the next failure)
        self._events: list[tuple[float, int, tuple[SimDevice, int] | Outage | None]] = []
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
                case Outage():
                    effects, next_ms = self._outages.tick(event, now_ms)
                    self._push(next_ms, event)
                    self._carry_out(event.device, effects, now_ms, back=next_ms is None)
                case (device, version):
                    if device.version == version:
                        self._step(device, now_ms)

    def _push(self, at_ms: float | None, event: tuple[SimDevice, int] | Outage | None) -> None:
        if at_ms is not None:
            heapq.heappush(self._events, (at_ms, next(self._numbers), event))

    def _place(self, sequence: Sequence, now_ms: float) -> None:
        job = sequence.job
        request = RouteRequest(
            request_id=sequence.request_id,
            tenant="simulated",
            model=job.model.name,
            prompt_bytes=job.prompt_tokens * _BYTES_PER_TOKEN,
            # A client's bound is seldom tight; the router must learn the lengths.
            max_tokens=None,
            slo=job.slo,
            objective=self._policy.objective,
        )
        tried = self._tries.get(sequence.request_id, frozenset())
        device_id = self._placer.place(request, tried, now_ms)
        if device_id is None:
            self._end(sequence, "", failed="refused")
            return
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
