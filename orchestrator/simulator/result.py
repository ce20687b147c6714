"""What a run leaves: each request with its times, and what the devices did."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.simulator.device import SimDevice
from orchestrator.simulator.policies import Policy
from orchestrator.simulator.workload import Job


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
    # Waited in the hub for a device with room.
    num_waited: int = 0
