"""All candidates of a model, one after the other, within a time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
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
from agent.calibration.kv_types import is_clearly_faster
from agent.calibration.trial import try_candidate
from agent.hardware.memory import read_memory
from shoal.kv_budget import ENGINE_OVERHEAD_BYTES, MIB

# Of all candidates of a model together: three or four of a small model on a PC.
LIMIT_S = 30.0


async def calibrate(
    files: Sequence[Path], limit_s: float, told: Callable[[Outcome], None]
) -> Choice | None:
    """Try variants, then threads and then q8_0 for the best, until the time is over.

    None: none serves. Cancelling it ends the candidate that is on trial.
    """
    ends_s = time.monotonic() + limit_s
    cpus = len(psutil.Process().cpu_affinity() or [0])
    tried: list[Outcome] = []

    async def attempt(candidate: Candidate) -> Outcome:
        outcome = await _try(candidate, ends_s - time.monotonic())
        told(outcome)
        return outcome

    for file in files:
        tried.append(await attempt(Candidate(file)))
    fastest = best(tried)
    if fastest is None:
        return None
    for threads in thread_counts(cpus, psutil.cpu_count(logical=False) or cpus):
        tried.append(await attempt(Candidate(fastest.candidate.file, threads)))
    fastest = best(tried) or fastest
    q8_0 = await attempt(dataclasses.replace(fastest.candidate, kv_type="q8_0"))
    if not (q8_0.serves and is_clearly_faster(q8_0.seconds, fastest.seconds)):
        return choice_of(fastest, q8_0)
    # Once more: something else may have run meanwhile, and text is not rounded more for that.
    again = await attempt(fastest.candidate)
    if again.serves:
        fastest = min(fastest, again, key=lambda outcome: outcome.seconds)
    return choice_of(fastest, q8_0, confirmed=again.serves)


async def _try(candidate: Candidate, left_s: float) -> Outcome:
    if left_s <= 0:
        return Outcome(candidate, "not tried: the time is over", lacks="time")
    missing_bytes = _missing_bytes(candidate.file)
    if missing_bytes > 0:
        short = f"not tried: {missing_bytes // MIB + 1} MiB of memory short"
        return Outcome(candidate, short, lacks="memory")
    return await try_candidate(candidate, left_s)


def _missing_bytes(file: Path) -> int:
    """Memory that the candidate needs beyond what is free, beside an engine that serves."""
    needed_bytes = file.stat().st_size + ENGINE_OVERHEAD_BYTES
    return needed_bytes - read_memory(Path("/")).available_bytes
