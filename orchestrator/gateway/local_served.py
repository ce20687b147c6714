"""What devices served on their own ports, beside what the fleet's hubs tell of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import structlog
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from orchestrator.fleet.local_served_redis import LocalServedStore
from orchestrator.fleet.registry_redis import StateError

_log = structlog.get_logger(__name__)

_OUTCOMES = ("finished", "failed", "cancelled")
_TOKENS = {"prompt_tokens": "prompt", "cached_tokens": "cached", "completion_tokens": "completion"}


async def add_local_served(store: LocalServedStore, devices: list[dict[str, Any]]) -> None:
    """Give each device its `local_served`, sums by model; none while the store is away."""
    try:
        sums = await store.sums([device["id"] for device in devices])
    except StateError as error:
        _log.warning("local_served_unreadable", error=str(error))
        return
    for device in devices:
        device["local_served"] = sums.get(device["id"], {})


def local_families(devices: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    """Counters of local requests, tokens and joules."""
    labels = ("device", "model")
    requests = CounterMetricFamily(
        "shoal_local_requests",
        "Requests that devices answered on their own ports, as they reported.",
        labels=(*labels, "outcome"),
    )
    tokens = CounterMetricFamily("shoal_local_tokens", "Tokens of those.", labels=(*labels, "kind"))
    joules = CounterMetricFamily("shoal_local_joules", "Energy of those.", labels=labels)
    for device in devices:
        for model, sums in device.get("local_served", {}).items():
            of = (device["name"], model)
            for outcome in _OUTCOMES:
                requests.add_metric((*of, outcome), sums.get(outcome, 0.0))
            for name, kind in _TOKENS.items():
                tokens.add_metric((*of, kind), sums.get(name, 0.0))
            joules.add_metric(of, sums.get("joules", 0.0))
    yield from (requests, tokens, joules)
