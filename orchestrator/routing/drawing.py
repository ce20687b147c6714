"""Which devices to look at: all of a small fleet, a few drawn by class of a large one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from orchestrator.fleet.view import DeviceClass, DeviceId, DeviceView, FleetView

# Device ids by class, for one model.
Serving = Mapping[DeviceClass, list[DeviceId]]

# Up to here every device is looked at, and its reason is in the decision.
FULL_SCAN_DEVICES = 32
# Devices drawn of each class of a larger fleet. The best of k random ones is, for
# small k already, close to the best of all, and concurrent routers do not herd.
DRAW_PER_CLASS = 8
# The same when none of those could serve, before the request is refused: bounded, so
# that refusals stay cheap when a large fleet is overloaded.
SECOND_DRAW_PER_CLASS = 512
# Age at which the index of a large fleet is rebuilt. It holds only who serves what;
# load and state are always read from the view itself.
INDEX_MAX_AGE_MS = 500.0
# Building takes about 0.5 us a device: at most 1 % of the time is spent on it.
INDEX_MIN_AGE_MS_PER_DEVICE = 0.05


class ModelIndex:
    """Who serves what in a large fleet, by model and class; rebuilt when it is old.

    A device that joined since the last build may be overlooked for INDEX_MAX_AGE_MS (in
    fleets above 10,000 devices for INDEX_MIN_AGE_MS_PER_DEVICE each).
    """

    def __init__(self) -> None:
        self._built_ms = -float("inf")
        self._version = -1
        self._ids: dict[str, dict[DeviceClass, list[DeviceId]]] = {}

    def serving(
        self, view: FleetView, model: str, now_ms: float, *, urgent: bool = False
    ) -> Serving:
        """Device ids that serve the model, by class; do not change the lists.

        `urgent`: rebuild as early as its cost allows, for a request about to be refused.
        """
        max_age_ms = len(view.devices) * INDEX_MIN_AGE_MS_PER_DEVICE
        if not urgent:
            max_age_ms = max(max_age_ms, INDEX_MAX_AGE_MS)
        if view.version != self._version and now_ms - self._built_ms >= max_age_ms:
            self._build(view, now_ms)
        return self._ids.get(model, {})

    def _build(self, view: FleetView, now_ms: float) -> None:
        ids: dict[str, dict[DeviceClass, list[DeviceId]]] = {}
        for device_id, device in view.devices.items():
            for name in device.models:
                ids.setdefault(name, {}).setdefault(device.device_class, []).append(device_id)
        self._ids = ids
        self._built_ms = now_ms
        self._version = view.version


def draw(
    ids: list[DeviceId], devices: Mapping[DeviceId, DeviceView], count: int, rng: random.Random
) -> list[DeviceView]:
    """Up to `count` different devices of `ids` that are in the view, at random."""
    if len(ids) <= count:
        chosen: Iterable[DeviceId] = ids
    elif len(ids) < 2 * count:
        chosen = rng.sample(ids, count)
    else:
        # Distinct random positions; several times faster than random.sample for a few.
        size = len(ids)
        positions: set[int] = set()
        while len(positions) < count:
            positions.add(int(rng.random() * size))
        chosen = [ids[position] for position in positions]
    return [device for device_id in chosen if (device := devices.get(device_id)) is not None]
