"""`python -m agent.calibration --home DIR --model FILE|NAME`: one JSON line a candidate."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from agent.calibration.choosing import Outcome, why_none
from agent.calibration.in_use import with_kv
from agent.calibration.kv_types import KvWish
from agent.calibration.measuring import LIMIT_S, calibrate
from agent.calibration.store import CalibrationStore, key_of, variants
from agent.hardware.report import detect
from agent.session.errors import AgentError
from shoal.model_names import catalogue_name

_NOTHING_SERVES = 1
_USAGE = 2


def main(arguments: Sequence[str]) -> int:
    """Calibrate, or tell what an earlier one found; the exit code."""
    parser = argparse.ArgumentParser(prog="agent.calibration", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="state directory of the agent")
    parser.add_argument("--model", required=True, help="GGUF file, or name of a model")
    parser.add_argument(
        "--limit-s", type=float, default=LIMIT_S, help="for all candidates together"
    )
    parser.add_argument("--slots", type=int, help="that the agent is to have; default: chosen")
    parser.add_argument("--context", type=int, help="tokens that each is to have")
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
    tried: list[Outcome] = []
    if choice is None:

        def told(outcome: Outcome) -> None:
            tried.append(outcome)
            _say(**{**asdict(outcome), "candidate": str(outcome.candidate)})

        choice = asyncio.run(calibrate(files, given.limit_s, told))
        if choice is not None:
            store.keep(name, key, choice, tried)
        else:
            store.keep_failure(name, key, given.limit_s, tried)
    if choice is None:
        sys.stderr.write(f"{name} is not calibrated: {why_none(tried, given.limit_s)}\n")
        return _NOTHING_SERVES
    choice = with_kv(choice, KvWish(given.slots, given.context))
    _say(
        model=name,
        file=choice.file.name,
        threads=choice.threads,
        slots=choice.slots,
        kv_type=choice.kv.name if choice.kv else "f16",
        kv_why=choice.kv.why if choice.kv else "",
        cached=cached,
    )
    return 0


def _say(**told: object) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
