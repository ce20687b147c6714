"""What the fleet is asked for: a seeded synthetic mix, or a recording in JSON lines."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.request import Slo
from orchestrator.simulator.errors import InputError
from orchestrator.simulator.fleet_file import FleetSpec

# Of requests that name none.
TENANT = "simulated"


@dataclass(frozen=True, slots=True)
class SimModel:
    """A model as the simulation knows it."""

    name: str
    num_parameters: int


@dataclass(frozen=True, slots=True)
class Job:
    """One request: when it comes and what it needs."""

    arrival_ms: float
    model: SimModel
    prompt_tokens: int
    completion_tokens: int
    slo: Slo
    tenant: str = TENANT
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request in the synthetic mix.

    Lengths are log-normal round their median; `spread` is the sigma of the log.
    """

    share: float
    model: SimModel
    prompt_median: int
    completion_median: int
    slo: Slo
    spread: float = 0.6

    @property
    def mean_factor(self) -> float:
        """Mean over median of the lengths."""
        return math.exp(self.spread**2 / 2)


_SMALL = SimModel("small-0.5b", 500_000_000)
_MIDDLE = SimModel("middle-1.5b", 1_500_000_000)
_LARGE = SimModel("large-3b", 3_000_000_000)

# Planning inputs, not a measured trace: short chat and extraction on a small model, a
# reader's pace for chat (50 ms a token is 20 tokens/s), and relaxed summaries.
MIX = (
    Kind(0.40, _SMALL, 200, 80, Slo(ttft_ms=5_000, tpot_ms=100)),
    Kind(0.35, _MIDDLE, 300, 150, Slo(ttft_ms=5_000, tpot_ms=50)),
    Kind(0.25, _LARGE, 500, 150, Slo(ttft_ms=15_000, tpot_ms=200)),
)
_MAX_TOKENS = 4_096


def capacity_per_s(fleet: FleetSpec, mix: Sequence[Kind] = MIX) -> float:
    """Requests/s of the mix that the fleet can serve with full batches, by stated speeds."""
    total = 0.0
    for device in fleet.kinds:
        served = [k for k in mix if not device.models or k.model.name in device.models]
        share = sum(kind.share for kind in served)
        if not served:
            continue
        mean_ms = 0.0
        for kind in served:
            size, factor = kind.model.num_parameters, kind.mean_factor
            busy_ms = device.prefill_ms(size, kind.prompt_median * factor)
            step_ms = device.step_ms(size, device.slots) / device.slots
            mean_ms += kind.share / share * (busy_ms + kind.completion_median * factor * step_ms)
        total += device.count * 1000.0 / mean_ms
    return total


def synthetic(
    num_requests: int, per_s: float, seed: int, mix: Sequence[Kind] = MIX
) -> Iterator[Job]:
    """Poisson arrivals of the mix; the same for the same seed."""
    rng = random.Random(seed)  # noqa: S311 - a workload needs no secrecy
    weights = [kind.share for kind in mix]
    now_ms = 0.0
    for _ in range(num_requests):
        now_ms += rng.expovariate(per_s) * 1000.0
        kind = rng.choices(mix, weights)[0]
        prompt = _length(rng, kind.prompt_median, kind.spread)
        completion = _length(rng, kind.completion_median, kind.spread)
        yield Job(now_ms, kind.model, prompt, completion, kind.slo)


def _length(rng: random.Random, median: int, spread: float) -> int:
    return max(1, min(_MAX_TOKENS, round(rng.lognormvariate(math.log(median), spread))))


def recorded(path: Path) -> list[Job]:
    """Requests of a JSON-lines file, in order of arrival; raises InputError with the line.

    A line: {"arrival_ms", "model", "num_parameters", "prompt_tokens",
    "completion_tokens"} and, if there is an objective, "ttft_ms" and "tpot_ms"; of a
    fleet with several tenants "tenant", and "priority" (0).
    """
    jobs = []
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            jobs.append(_job(json.loads(line)))
        except (ValueError, TypeError) as error:
            raise InputError(f"{path}, line {number}: {error}") from error
        except KeyError as error:
            raise InputError(f"{path}, line {number}: {error.args[0]} is missing") from error
    if not jobs:
        raise InputError(f"{path} holds no requests")
    return sorted(jobs, key=lambda job: job.arrival_ms)


def _job(raw: dict[str, object]) -> Job:
    def number(name: str) -> float:
        value = raw[name]
        if not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a number from 0 up")
        return value

    slo = Slo(*(number(name) if name in raw else None for name in ("ttft_ms", "tpot_ms")))
    return Job(
        arrival_ms=float(number("arrival_ms")),
        model=SimModel(str(raw["model"]), max(1, int(number("num_parameters")))),
        prompt_tokens=max(1, int(number("prompt_tokens"))),
        completion_tokens=max(1, int(number("completion_tokens"))),
        slo=slo,
        tenant=str(raw.get("tenant", TENANT)),
        priority=_priority(raw.get("priority", 0)),
    )


def _priority(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("priority must be a whole number")
    return value
