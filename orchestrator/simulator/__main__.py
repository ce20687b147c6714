"""`python -m orchestrator.simulator`: one study, as one JSON document on stdout."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from orchestrator.simulator.errors import InputError
from orchestrator.simulator.fleet_file import article_fleet, load_fleet
from orchestrator.simulator.plot import svg
from orchestrator.simulator.policies import Policy
from orchestrator.simulator.study import Study, run_study
from orchestrator.simulator.workload import recorded

_BAD_INPUT = 2


def main() -> int:
    """Run the study that the arguments describe; 2: an argument or a file is wrong."""
    options = _parser().parse_args()
    try:
        study = _study(options)
    except InputError as error:
        print(error, file=sys.stderr)
        return _BAD_INPUT
    document = run_study(study)
    if options.plot is not None:
        try:
            options.plot.write_text(svg(document["runs"]))
        except OSError as error:
            print(f"{options.plot}: {error.strerror}", file=sys.stderr)
            return _BAD_INPUT
    json.dump(document, sys.stdout, indent=2)
    print()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m orchestrator.simulator")
    parser.add_argument("--fleet", type=Path)
    parser.add_argument("--devices", type=int)
    parser.add_argument("--workload", type=Path)
    parser.add_argument("--policy", action="append", choices=[policy.value for policy in Policy])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path)
    return parser


def _study(options: argparse.Namespace) -> Study:
    if options.requests < 1:
        raise InputError("--requests must be at least 1")
    if not options.load > 0:
        raise InputError("--load must be above 0")
    fleet = load_fleet(options.fleet) if options.fleet is not None else article_fleet()
    if options.devices is not None:
        if options.devices < len(fleet.kinds):
            raise InputError(f"--devices must be at least {len(fleet.kinds)}: one of each kind")
        fleet = fleet.scaled_to(options.devices)
    return Study(
        fleet=fleet,
        policies=tuple(Policy(name) for name in options.policy or Policy),
        load=options.load,
        num_requests=options.requests,
        seed=options.seed,
        jobs=tuple(recorded(options.workload)) if options.workload is not None else (),
    )


if __name__ == "__main__":
    sys.exit(main())
