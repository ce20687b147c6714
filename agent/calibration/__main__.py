"""`python -m agent.calibration --home DIR --model FILE|NAME`: one JSON line a candidate."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import psutil

from agent.calibration.choosing import (
    Candidate,
    Choice,
    Outcome,
    best,
    choice_of,
    thread_counts,
)
from agent.calibration.store import CalibrationStore, key_of, variants
from agent.calibration.trial import try_candidate
from agent.hardware.report import detect
from agent.session.errors import AgentError
from shoal.model_names import catalogue_name

_NOTHING_SERVES = 1
_USAGE = 2


async def calibrate(files: Sequence[Path], limit_s: float) -> Choice | None:
    """Try variants, then threads for the best, until the time is over; prints each outcome."""
    ends_s = time.monotonic() + limit_s
    cpus = len(psutil.Process().cpu_affinity() or [0])
    tried: list[Outcome] = []

    async def attempt(candidate: Candidate) -> None:
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            _say(candidate=str(candidate), failure="not tried: the time is over")
            return
        outcome = await try_candidate(candidate, left_s)
        tried.append(outcome)
        told = {**asdict(outcome), "candidate": str(candidate)}
        _say(**told)

    for file in files:
        await attempt(Candidate(file))
    fastest = best(tried)
    if fastest is not None:
        for threads in thread_counts(cpus, psutil.cpu_count(logical=False) or cpus):
            await attempt(Candidate(fastest.candidate.file, threads))
    chosen = best(tried)
    return None if chosen is None else choice_of(chosen)


def main(arguments: Sequence[str]) -> int:
    """Calibrate, or tell what an earlier one found; the exit code."""
    parser = argparse.ArgumentParser(prog="agent.calibration", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="state directory of the agent")
    parser.add_argument("--model", required=True, help="GGUF file, or name of a model")
    parser.add_argument("--limit-s", type=float, default=30.0, help="for all candidates together")
    parser.add_argument("--again", action="store_true", help="whatever an earlier one found")
    given = parser.parse_args(arguments)
    try:
        files = variants(given.model, given.home / "models")
    except AgentError as error:
        sys.stderr.write(f"{error.message}\n")
        return _USAGE
    store, name = CalibrationStore(given.home), catalogue_name(files[0])
    key = key_of(detect(), files)
    choice = None if given.again else store.find(name, key)
    cached = choice is not None
    choice = choice or asyncio.run(calibrate(files, given.limit_s))
    if choice is None:
        sys.stderr.write(f"no candidate of {name} serves on this device\n")
        return _NOTHING_SERVES
    store.keep(name, key, choice)
    _say(
        model=name,
        file=choice.file.name,
        threads=choice.threads,
        slots=choice.slots,
        kv_type="f16",
        cached=cached,
    )
    return 0


def _say(**told: object) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
