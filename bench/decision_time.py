"""How long one routing decision takes: p50, p99 and the longest, by fleet size and objective.

    python -m bench.decision_time [--out FILE]

Devices of four classes serve one model each way that a fleet is met: idle, busy (half of
the slots taken at random), and full (every request is refused). The virtual clock moves
5 ms a decision, as at 200 requests/s, and after each decision the chosen device holds a
request more and another one less, as in the hub: `book` is what these two changes of the
view take. Every round makes the very same decisions from the same state (else the run
fails), and a decision's time is the median of its rounds: so `p99` is what the dearest
decisions cost, and not how often the machine was interrupted. `as_it_came` holds the
quantiles of all single times, and `fixed_work` those of a loop that always does the same
and takes as long as the median decision: how far its p99 is off its p50 is the machine's.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine import machine
from orchestrator.fleet.view import (
    DeviceClass,
    DeviceId,
    DeviceState,
    DeviceView,
    ServedModel,
)
from orchestrator.fleet.view_store import Reservation, ViewStore
from orchestrator.request import Objective, RouteRequest, Slo
from orchestrator.routing.router import Router

RESULTS = Path(__file__).parent / "results" / "decision_time.json"
TARGETS_US = {1_000: 100.0, 100_000: 300.0}
MODEL = "small"
MS_PER_DECISION = 5.0
# Requests that run at once, placed by the decisions timed.
HELD_AT_ONCE = 64


def fleet(num_devices: int, load: str, seed: int = 1) -> ViewStore:
    rng = random.Random(seed)
    classes = list(DeviceClass)
    store = ViewStore()
    for number in range(num_devices):
        speed = rng.lognormvariate(0.0, 0.3)
        held = {"idle": 0, "busy": rng.randrange(8), "full": 24}[load]
        model = ServedModel(
            name=MODEL,
            fingerprint="f",
            num_parameters=500_000_000,
            context_tokens=4096,
            slots=8,
            prefill_tokens_per_s=800.0 * speed,
            decode_tokens_per_s=80.0 * speed,
            decode_batch_tokens_per_s=tuple(80.0 * speed * f for f in (1.0, 1.7, 2.6, 3.2)),
            running=held,
            waiting_prefill_tokens=100 * held,
        )
        store.put(
            DeviceView(
                device_id=DeviceId(f"{number:032x}"),
                name=f"device-{number}",
                device_class=classes[number % len(classes)],
                state=DeviceState.READY,
                models={MODEL: model},
                tdp_w=20.0,
            )
        )
    return store


@dataclass
class Round:
    """What each decision of one pass took, in µs, and whom it chose."""

    decided_us: list[float]
    booked_us: list[float]
    chosen: list[DeviceId | None]


def time_decisions(store: ViewStore, objective: Objective, num_decisions: int) -> Round:
    router = Router(rng=random.Random(7))
    hints = tuple(range(1, 5))
    requests = [
        RouteRequest(
            request_id=f"req-{number:028x}",
            tenant="t",
            model=MODEL,
            prompt_bytes=800,
            max_tokens=128,
            slo=Slo(ttft_ms=5_000.0, tpot_ms=200.0),
            objective=objective,
            prefix_hints=tuple(hint + number % 64 * 1_000 for hint in hints),
        )
        for number in range(num_decisions)
    ]
    nothing: frozenset[DeviceId] = frozenset()
    taken = Round([], [], [])
    view, held = store.fleet, deque[Reservation]()
    # The first decisions make devices' entries in the estimator.
    for number in range(1_000):
        router.route(requests[number % num_decisions], view, exclude=nothing, now_ms=0.0)
    gc.collect()
    for number, request in enumerate(requests):
        now_ms = 1e6 + number * MS_PER_DECISION
        began_ns = time.perf_counter_ns()
        decision = router.route(request, view, exclude=nothing, now_ms=now_ms)
        decided_ns = time.perf_counter_ns()
        if decision.ranked:
            held.append(Reservation(decision.ranked[0], MODEL, 200, now_ms))
            store.reserve(held[-1])
        if len(held) > HELD_AT_ONCE:
            store.release(held.popleft(), prefill_ended=False)
        booked_ns = time.perf_counter_ns()
        taken.decided_us.append((decided_ns - began_ns) / 1000.0)
        taken.booked_us.append((booked_ns - decided_ns) / 1000.0)
        taken.chosen.append(decision.ranked[0] if decision.ranked else None)
    return taken


def time_fixed_work(us: float, count: int) -> list[float]:
    """What a loop without branches takes each time, in µs; `us` is about what it should."""

    def work(steps: int) -> float:
        began_ns, total = time.perf_counter_ns(), 0.0
        for step in range(steps):
            total += step * 1.5
        return (time.perf_counter_ns() - began_ns) / 1000.0

    steps_per_us = 10_000 / statistics.median(work(10_000) for _ in range(20))
    return [work(round(us * steps_per_us)) for _ in range(count)]


def quantiles(took_us: Sequence[float]) -> dict[str, float]:
    in_order = sorted(took_us)
    shares = {"p50_us": 0.5, "p99_us": 0.99, "max_us": 1.0}
    return {
        label: round(in_order[min(len(in_order) - 1, int(share * len(in_order)))], 1)
        for label, share in shares.items()
    }


def measure(size: int, load: str, objective: Objective, options: argparse.Namespace) -> Any:
    rounds = [
        time_decisions(fleet(size, load), objective, options.decisions)
        for _ in range(options.rounds)
    ]
    if any(each.chosen != rounds[0].chosen for each in rounds):
        raise RuntimeError("rounds decided differently: their times cannot be compared")
    decided = [each.decided_us for each in rounds]
    row = {
        "devices": size,
        "load": load,
        "objective": objective.value,
        **quantiles([statistics.median(times) for times in zip(*decided, strict=True)]),
        "book": quantiles(
            [statistics.median(t) for t in zip(*[r.booked_us for r in rounds], strict=True)]
        ),
        "as_it_came": quantiles([us for times in decided for us in times]),
    }
    row["fixed_work"] = quantiles(
        time_fixed_work(row["p50_us"], options.decisions * options.rounds)
    )
    if size in TARGETS_US:
        row["target_p99_us"] = TARGETS_US[size]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--decisions", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 32, 1_000, 100_000])
    options = parser.parse_args()
    rows = []
    for size in options.sizes:
        for load in ("idle", "busy", "full"):
            for objective in (Objective.LATENCY, Objective.EDP):
                rows.append(measure(size, load, objective, options))
                print(json.dumps(rows[-1]), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    # Above the number of cores, other work was in the way of these figures.
    report = {"machine": machine(), "load_average": os.getloadavg()[0], "rows": rows}
    options.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
