"""Energy-delay product of the simulated article fleet at 70 % load, by policy, over 10 seeds.

    python -m bench.simulate_edp

Target: EDP at least 40 % below least-loaded at an SLO attainment of at least 99 %. Two
figures are kept: `edp_js`, the mean over requests of joules charged x latency, and
`fleet_edp_js`, with the idle power of the whole fleet in it. All is simulated, from
planning inputs: nothing here is a measurement of a device.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.machine import machine
from orchestrator.fleet.view import DeviceClass
from orchestrator.simulator.fleet_file import FleetSpec, article_fleet
from orchestrator.simulator.policies import Policy
from orchestrator.simulator.study import Study, run_study

RESULTS = Path(__file__).parent / "results" / "simulate_edp.json"
TARGET_SAVING, TARGET_ATTAINMENT = 0.40, 0.99
SAVED = ("edp_js", "fleet_edp_js")
FIGURES = ("slo_attainment", "edp_js", "fleet_edp_js", "fleet_joules_per_request")


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
    }


def accelerators_only() -> FleetSpec:
    """The same without CPUs: how much is saved where every device is a good one."""
    fleet = article_fleet(20)
    kinds = [k for k in fleet.kinds if k.device_class in (DeviceClass.NPU, DeviceClass.GPU)]
    return replace(fleet, kinds=tuple(kinds))


def compare(fleet: FleetSpec, options: argparse.Namespace) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for seed in range(1, options.seeds + 1):
        study = Study(fleet, load=options.load, num_requests=options.requests, seed=seed)
        runs = {run["policy"]: run for run in run_study(study)["runs"]}
        row: dict[str, Any] = {"seed": seed}
        for policy, run in runs.items():
            row[policy] = {figure: round(run[figure], 4) for figure in FIGURES}
            row[policy]["ttft_p95_ms"] = round(run["latency"]["ttft_ms"]["p95"], 1)
            row[policy]["tpot_p95_ms"] = round(run["latency"]["tpot_ms"]["p95"], 1)
        for figure in SAVED:
            saved = 1 - runs["shoal_edp"][figure] / runs["least_loaded"][figure]
            row[f"{figure}_saving"] = round(saved, 4)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return {
        "devices": {kind.name: kind.count for kind in fleet.kinds},
        "policies": {
            policy.value: {
                figure: spread([row[policy.value][figure] for row in rows]) for figure in FIGURES
            }
            for policy in Policy
        },
        "saving_over_least_loaded": {
            figure: spread([row[f"{figure}_saving"] for row in rows]) for figure in SAVED
        },
        "target_met_for_every_seed": all(
            row[f"{figure}_saving"] >= TARGET_SAVING for row in rows for figure in SAVED
        )
        and all(row["shoal_edp"]["slo_attainment"] >= TARGET_ATTAINMENT for row in rows),
        "seeds": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=8_000)
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    report = {
        "simulated": True,
        "inputs": article_fleet().source,
        "load": options.load,
        "requests": options.requests,
        "target": {"saving": TARGET_SAVING, "slo_attainment": TARGET_ATTAINMENT},
        "machine": machine(),
        "article_fleet": compare(article_fleet(), options),
        "accelerators_only": compare(accelerators_only(), options),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
