"""Policies side by side over the same workload and fleet, for one or several seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.simulator.fleet_file import FleetSpec
from orchestrator.simulator.policies import Policy
from orchestrator.simulator.report import summary
from orchestrator.simulator.run import Simulation
from orchestrator.simulator.workload import MIX, Job, SimModel, capacity_per_s, synthetic


@dataclass(frozen=True, slots=True)
class Study:
    """What to compare. `jobs` empty: the synthetic mix at `load` of the fleet's capacity."""

    fleet: FleetSpec
    policies: tuple[Policy, ...] = tuple(Policy)
    load: float = 0.7
    num_requests: int = 10_000
    seed: int = 1
    jobs: tuple[Job, ...] = ()

    @property
    def models(self) -> dict[str, SimModel]:
        """All models that are asked for."""
        models = [job.model for job in self.jobs] or [kind.model for kind in MIX]
        return {model.name: model for model in models}

    def workload(self) -> Iterable[Job]:
        """The requests, the same for each policy."""
        if self.jobs:
            return self.jobs
        return synthetic(self.num_requests, self.arrivals_per_s, self.seed)

    @property
    def arrivals_per_s(self) -> float:
        """Rate of the synthetic arrivals."""
        return self.load * capacity_per_s(self.fleet)


def run_study(study: Study) -> dict[str, Any]:
    """All policies one after the other; ready for JSON."""
    runs = [
        summary(Simulation(study.fleet, study.models, policy, study.seed).run(study.workload()))
        for policy in study.policies
    ]
    document: dict[str, Any] = {
        "fleet": {
            "source": study.fleet.source,
            "num_devices": study.fleet.num_devices,
            "kinds": {kind.name: kind.count for kind in study.fleet.kinds},
        },
        "workload": {"num_requests": runs[0]["num_requests"], "seed": study.seed},
        "runs": runs,
        "notes": _notes(runs),
    }
    if not study.jobs:
        document["workload"] |= {"load": study.load, "arrivals_per_s": study.arrivals_per_s}
    return document


def _notes(runs: Sequence[dict[str, Any]]) -> list[str]:
    """What a reader must know before believing the figures."""
    notes = ["simulated: speeds and power are planning inputs, nothing here was measured"]
    run = runs[0]
    longest_s = max(run["latency"]["total_ms"]["mean"] for run in runs) / 1000.0
    if run["span_s"] < 5 * longest_s:
        notes.append(
            f"the arrivals span {run['span_s']:.0f} s, less than five times the longest mean"
            f" latency ({longest_s:.0f} s): some fleet never reached its stated load;"
            " take more requests or fewer devices"
        )
    return notes
