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
from pathlib import Path
from typing import Any

from bench.machine import machine
from orchestrator.simulator.fleet_file import article_fleet
from orchestrator.simulator.policies import Policy
from orchestrator.simulator.study import Study, run_study

RESULTS = Path(__file__).parent / "results" / "simulate_edp.json"
TARGET_SAVING, TARGET_ATTAINMENT = 0.40, 0.99
FIGURES = ("slo_attainment", "edp_js", "fleet_edp_js", "fleet_joules_per_request")


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=8_000)
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in range(1, options.seeds + 1):
        study = Study(article_fleet(), load=options.load, num_requests=options.requests, seed=seed)
        runs = {run["policy"]: run for run in run_study(study)["runs"]}
        row: dict[str, Any] = {"seed": seed}
        for policy, run in runs.items():
            row[policy] = {figure: round(run[figure], 4) for figure in FIGURES}
            row[policy]["ttft_p95_ms"] = round(run["latency"]["ttft_ms"]["p95"], 1)
            row[policy]["tpot_p95_ms"] = round(run["latency"]["tpot_ms"]["p95"], 1)
        for figure in ("edp_js", "fleet_edp_js"):
            row[f"{figure}_saving"] = round(
                1 - runs["shoal_edp"][figure] / runs["least_loaded"][figure], 4
            )
        rows.append(row)
        print(json.dumps(row), flush=True)
    worst_saving = min(row["edp_js_saving"] for row in rows)
    worst_attainment = min(row["shoal_edp"]["slo_attainment"] for row in rows)
    report = {
        "simulated": True,
        "fleet": article_fleet().source,
        "load": options.load,
        "requests": options.requests,
        "machine": machine(),
        "policies": {
            policy.value: {
                figure: spread([row[policy.value][figure] for row in rows]) for figure in FIGURES
            }
            for policy in Policy
        },
        "saving_over_least_loaded": {
            figure: spread([row[f"{figure}_saving"] for row in rows])
            for figure in ("edp_js", "fleet_edp_js")
        },
        "target": {"saving": TARGET_SAVING, "slo_attainment": TARGET_ATTAINMENT},
        "met_for_every_seed": worst_saving >= TARGET_SAVING
        and worst_attainment >= TARGET_ATTAINMENT,
        "seeds": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({key: report[key] for key in ("saving_over_least_loaded", "policies")}))


if __name__ == "__main__":
    main()
