"""Which devices to look at: all of a small fleet, a few drawn by class of a large one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from orchestrator.fleet.view import DeviceClass, DeviceId, DeviceView, FleetView

# Device ids by class, for one model.
Serving = Mapping[DeviceClass, list[DeviceId]]

# Up to here every device is looked at, and its reason is in the decision.
FULL_SCAN_DEVICES = 64
# Devices drawn of each class of a larger fleet. The best of k random ones is, for
# small k already, close to the best of all, and concurrent routers do not herd.
DRAW_PER_CLASS = 12
# Age at which the index of a large fleet is rebuilt. It holds only who serves what;
# load and state are always read from the view itself.
INDEX_MAX_AGE_MS = 500.0


class ModelIndex:
    """Who serves what in a large fleet, by model and class; rebuilt when it is old.

    A device that joined since the last build may be overlooked for INDEX_MAX_AGE_MS,
    never longer, and not at all when nothing else can serve (`refresh`).
    """

    def __init__(self) -> None:
        self._built_ms = -float("inf")
        self._version = -1
        self._ids: dict[str, dict[DeviceClass, list[DeviceId]]] = {}

    def serving(self, view: FleetView, model: str, now_ms: float) -> Serving:
        """Device ids that serve the model, by class; do not change the lists."""
        if view.version != self._version and now_ms - self._built_ms >= INDEX_MAX_AGE_MS:
            self.refresh(view, now_ms)
        return self._ids.get(model, {})

    def refresh(self, view: FleetView, now_ms: float) -> None:
        """Rebuild from the view now, in time proportional to the fleet."""
        ids: dict[str, dict[DeviceClass, list[DeviceId]]] = {}
        for device_id, device in view.devices.items():
            for name in device.models:
                ids.setdefault(name, {}).setdefault(device.device_class, []).append(device_id)
        self._ids = ids
        self._built_ms = now_ms
        self._version = view.version


def draw(
    ids: list[DeviceId], devices: Mapping[DeviceId, DeviceView], rng: random.Random
) -> Iterable[DeviceView]:
    """Up to DRAW_PER_CLASS different devices of one class that are in the view."""
    if len(ids) <= DRAW_PER_CLASS:
        chosen: Iterable[DeviceId] = ids
    else:
        # Distinct random positions; several times faster than random.sample for a few.
        size = len(ids)
        positions: set[int] = set()
        while len(positions) < DRAW_PER_CLASS:
            positions.add(int(rng.random() * size))
        chosen = [ids[position] for position in positions]
    return [device for device_id in chosen if (device := devices.get(device_id)) is not None]
