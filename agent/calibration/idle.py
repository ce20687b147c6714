"""Calibration by itself: once for each model and state of the device, while nobody asks it.

Not at the start, where it would stand between a device and its first token: in the first
minute without a request. A request that comes ends the candidate on trial, and the next
quiet minute begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import structlog

from agent.calibration.choosing import Outcome, why_none
from agent.calibration.measuring import LIMIT_S, calibrate
from agent.calibration.store import CalibrationStore
from shoal.tasks import cancelled

log = structlog.get_logger()

_LOOK_EVERY_S = 1.0
# While a candidate runs: for so long a request may meet it.
_LOOK_BUSY_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Uncalibrated:
    """A model of which nothing is known here: its files, and what names device and files."""

    name: str
    key: str
    files: Sequence[Path]


@dataclass(frozen=True, slots=True)
class IdleTerms:
    """In s: how long nothing ran before it begins, and for all candidates of a model.

    `busy_percent`: of the machine's CPUs in use by whatever else, from which it is not quiet:
    measured beside other work, too few threads look best.
    """

    quiet_s: float = 60.0
    limit_s: float = LIMIT_S
    busy_percent: float = 20.0


async def calibrate_when_idle(
    wanted: Sequence[Uncalibrated],
    store: CalibrationStore,
    is_idle: Callable[[], bool],
    terms: IdleTerms,
) -> None:
    """Measure and keep what suits each model; it is used from the agent's next start."""
    for model in wanted:
        while True:
            await _until_quiet(is_idle, terms)
            if await _measure(model, store, is_idle, terms.limit_s):
                break
            log.info("calibration_put_off", model=model.name, why="a request came")


async def _until_quiet(is_idle: Callable[[], bool], terms: IdleTerms) -> None:
    clock = asyncio.get_running_loop().time
    since = clock()
    psutil.cpu_percent()  # later calls tell what was used since the one before
    while clock() - since < terms.quiet_s:
        await asyncio.sleep(min(_LOOK_EVERY_S, terms.quiet_s))
        is_busy = psutil.cpu_percent() > terms.busy_percent
        if is_busy or not is_idle():
            since = clock()


async def _measure(
    model: Uncalibrated, store: CalibrationStore, is_idle: Callable[[], bool], limit_s: float
) -> bool:
    """Whether it came to its end, whatever it found."""
    tried: list[Outcome] = []
    work = asyncio.create_task(calibrate(model.files, limit_s, tried.append))
    try:
        while not work.done():
            await asyncio.wait([work], timeout=_LOOK_BUSY_EVERY_S)
            if not work.done() and not is_idle():
                return False
    finally:
        await cancelled([work])
    try:
        choice = work.result()
        if choice is not None:
            store.keep(model.name, model.key, choice, tried)
        else:
            store.keep_failure(model.name, model.key, limit_s, tried)
    except OSError as error:  # a file that is gone, a full disk: the device goes on serving
        log.warning("not_calibrated", model=model.name, why=str(error))
        return True
    failures = [f"{each.candidate}: {each.failure}" for each in tried if each.failure]
    if choice is None:
        why = why_none(tried, limit_s)
        log.warning("not_calibrated", model=model.name, why=why, tried=failures)
    else:
        log.info("calibration_kept", model=model.name, choice=str(choice), failed=failures)
    return True
