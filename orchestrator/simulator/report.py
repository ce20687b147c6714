"""The figures of a run: latency, SLO attainment, energy, and where the work went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from orchestrator.simulator.result import Ended, RunResult

# Requests before this share of all are left out of latency figures: the fleet was empty.
WARM_UP_SHARE = 0.1


def summary(result: RunResult) -> dict[str, Any]:
    """Figures of one run, ready for JSON.

    - `edp_js`: mean over served requests of (joules charged to the request x its latency),
      the dynamic energy of the device while busy shared among its running sequences.
    - `fleet_edp_js`: (energy of the whole fleet, idle power included, per served request)
      x mean latency. Idle power counts from the first to the last arrival.
    """
    in_order = sorted(result.ended, key=lambda ended: ended.job.arrival_ms)
    measured = in_order[int(len(in_order) * WARM_UP_SHARE) :]
    served = [ended for ended in measured if not ended.failed]
    energy = fleet_energy_j(result)
    num_served = sum(not ended.failed for ended in in_order)
    mean_latency_s = _mean([ended.latency_ms for ended in served]) / 1000.0
    per_request_j = energy["total_j"] / num_served if num_served else 0.0
    return {
        "policy": result.policy.value,
        "seed": result.seed,
        "num_requests": len(in_order),
        "num_devices": len(result.devices),
        "span_s": result.span_ms / 1000.0,
        "failures": dict(Counter(ended.failed for ended in in_order if ended.failed)),
        "device_failures": result.num_failures,
        "moved": result.num_moved,
        "waited": result.num_waited,
        "slo_attainment": sum(ended.met_slo for ended in measured) / max(1, len(measured)),
        "latency": {
            "ttft_ms": _quantiles([ended.ttft_ms for ended in served]),
            "tpot_ms": _quantiles(
                [ended.tpot_ms for ended in served if ended.job.completion_tokens > 1]
            ),
            "total_ms": _quantiles([ended.latency_ms for ended in served]),
        },
        "energy": energy,
        "joules_per_request": _mean([ended.joules for ended in served]),
        "edp_js": _mean([ended.joules * ended.latency_ms / 1000.0 for ended in served]),
        "fleet_joules_per_request": per_request_j,
        "fleet_edp_js": per_request_j * mean_latency_s,
        "classes": _by_class(result, in_order),
    }


def fleet_energy_j(result: RunResult) -> dict[str, float]:
    """Energy of all devices: idle power over the span, the rest of busy power while busy."""
    idle_j = dynamic_j = 0.0
    for device in result.devices:
        kind = device.kind
        idle_j += kind.idle_power_w * result.span_ms / 1000.0
        dynamic_j += (kind.busy_power_w - kind.idle_power_w) * device.busy_ms / 1000.0
    return {"idle_j": idle_j, "dynamic_j": dynamic_j, "total_j": idle_j + dynamic_j}


def _by_class(result: RunResult, ended: Sequence[Ended]) -> dict[str, dict[str, float]]:
    requests = Counter(each.device_class for each in ended if not each.failed)
    rows: dict[str, dict[str, float]] = {}
    for device in result.devices:
        row = rows.setdefault(device.kind.device_class, {"devices": 0, "busy_ms": 0.0})
        row["devices"] += 1
        # A last request may end after the span; utilisation is of the span.
        row["busy_ms"] += min(device.busy_ms, result.span_ms)
    for name, row in rows.items():
        row["requests"] = requests[name]
        row["share"] = requests[name] / max(1, requests.total())
        span_ms = result.span_ms * row["devices"]
        row["utilisation"] = row.pop("busy_ms") / span_ms if span_ms else 0.0
    return rows


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and mean; nearest rank."""
    in_order = sorted(values)
    if not in_order:
        return {"p50": 0.0, "p95": 0.0, "mean": 0.0}
    last = len(in_order) - 1
    p50, p95 = (in_order[min(last, int(share * len(in_order)))] for share in (0.5, 0.95))
    return {"p50": p50, "p95": p95, "mean": _mean(in_order)}
