"""A fleet and devices on bad networks, in network namespaces of their own.

    sudo .venv/bin/python -m bench.network            # all, about 20 minutes
    sudo .venv/bin/python -m bench.network nat half_open --save

A real orchestrator listens in one namespace; real agents dial it from others, through a
router that hides them (NAT). Needs root, iproute2 and nft or iptables; says so and ends
with 0 where that is missing. Nothing of the machine's own network is touched.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench.machine import machine
from bench.network_fleet import NetFleet
from bench.network_trials import TRIALS
from tests.harness import netlab

RESULTS = Path(__file__).parent / "results" / "network.json"


def main() -> int:
    """Command line; 1 when a trial failed, 0 when all held or none could be run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help=f"of {', '.join(TRIALS)}")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.trials) - set(TRIALS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if reason := netlab.missing():
        print(f"skipped: {reason}", file=sys.stderr)
        return 0
    netlab.enter(["-m", "bench.network", *sys.argv[1:]])
    results = _run(options.trials or list(TRIALS))
    print(json.dumps(results, indent=2))
    if options.save:
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        known |= {"machine": machine()} | results
        RESULTS.write_text(json.dumps(known, indent=2) + "\n")
    return 0 if all(result["held"] for result in results.values()) else 1


def _run(names: list[str]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with NetFleet() as fleet:
        for name in names:
            print(f"-- {name}", file=sys.stderr, flush=True)
            results[name] = TRIALS[name](fleet)
            print(f"   {json.dumps(results[name])}", file=sys.stderr, flush=True)
    return results


if __name__ == "__main__":
    sys.exit(main())
