"""The fleet's devices and engines as Prometheus metrics, made for one scrape."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import GaugeMetricFamily, UnknownMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from orchestrator.gateway.local_served import local_families

# Series of single devices are made for this many; more belong into a fleet's own sums.
MAX_DEVICES = 500
# An engine has about forty counters; a device could name any number.
_MAX_COUNTERS = 128
_LONGEST = 60  # of a device's words in a label
_COUNTER_NAME = re.compile(r"[a-z][a-z0-9_]{0,60}")
_ENGINE_GAUGES = {
    "running": "Sequences that run.",
    "waiting": "Requests that wait for a slot.",
    "slots": "Sequences that can run at once.",
    "kv_used_tokens": "Tokens in the KV of running sequences.",
    "kv_capacity_tokens": "Tokens that the KV of all slots can hold.",
}
_DEVICE_GAUGES = {
    "power_w": ("shoal_device_power_watts", "Mean power by the device's widest meter."),
    "temperature_c": ("shoal_device_temperature_celsius", "Hottest zone."),
    "cpu_percent": ("shoal_device_cpu_percent", "Of all cores."),
    "memory_available_bytes": ("shoal_device_memory_available_bytes", "Memory left."),
}


class FleetMetrics(Collector):
    """Families from `list_devices`' answer; `devices` None: no hub answered."""

    def __init__(self, devices: Sequence[Mapping[str, Any]] | None) -> None:
        self._devices = devices

    def collect(self) -> Iterator[Metric]:
        """Devices by state and class, then load and the engines' own counters of each."""
        reachable = GaugeMetricFamily("shoal_hub_reachable", "1: a hub answered this scrape.")
        reachable.add_metric((), float(self._devices is not None))
        yield reachable
        if self._devices is None:
            return
        states = GaugeMetricFamily("shoal_devices", "Devices.", labels=("state", "class"))
        counts = Counter((device["state"], device["class"]) for device in self._devices)
        for labels, count in sorted(counts.items()):
            states.add_metric(labels, count)
        yield states
        listed = [each for each in self._devices if each["state"] not in ("LEFT", "REVOKED")]
        left_out = GaugeMetricFamily(
            "shoal_devices_left_out", f"Devices beyond {MAX_DEVICES}, without series of their own."
        )
        left_out.add_metric((), max(0, len(listed) - MAX_DEVICES))
        yield left_out
        yield from _device_families(listed[:MAX_DEVICES])
        yield from _engine_families(listed[:MAX_DEVICES])
        yield from local_families(listed[:MAX_DEVICES])


def _device_families(devices: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    families = {
        field: GaugeMetricFamily(name, text, labels=("device",))
        for field, (name, text) in _DEVICE_GAUGES.items()
    }
    for device in devices:
        load = device["load"] or {}
        for field, family in families.items():
            value = _number(load.get(field))
            if value is not None:
                family.add_metric((device["name"],), value)
    yield from families.values()


def _engine_families(devices: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    """Counters keep the engine's names; some are sizes, so no type is claimed for them."""
    labels = ("device", "model")
    families: dict[str, Metric] = {
        name: GaugeMetricFamily(f"shoal_engine_{name}", text, labels=labels)
        for name, text in _ENGINE_GAUGES.items()
    }
    sharing = GaugeMetricFamily(
        "shoal_engine_kv_sharing",
        "1, with the policy and why no KV blocks are shared now.",
        labels=(*labels, "policy", "not_shared"),
    )
    for device in devices:
        for model in device["models"]:
            load = model.get("load") or {}
            told = load.get("kv_sharing")
            if told:
                terms = (str(told["policy"])[:_LONGEST], str(told["not_shared"])[:_LONGEST])
                sharing.add_metric((device["name"], model["name"], *terms), 1.0)
            of = (device["name"], model["name"])
            for name in _ENGINE_GAUGES:
                _add(families[name], of, load.get(name))
            for name, value in list(load.get("counters", {}).items())[:_MAX_COUNTERS]:
                if not _COUNTER_NAME.fullmatch(name) or name in _ENGINE_GAUGES:
                    continue
                if name not in families:
                    text = "As the engine reports it."
                    families[name] = UnknownMetricFamily(
                        f"shoal_engine_{name}", text, labels=labels
                    )
                _add(families[name], of, value)
    yield from families.values()
    yield sharing


def _add(family: Metric, labels: tuple[str, str], value: object) -> None:
    number = _number(value)
    if number is not None:
        family.add_metric(labels, number)  # type: ignore[attr-defined]


def _number(value: object) -> float | None:
    """A finite number; protobuf's JSON has 64-bit integers as strings."""
    if not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
