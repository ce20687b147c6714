"""Which devices to look at: all of a small fleet, a few drawn by class of a large one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from orchestrator.fleet.view import DeviceClass, DeviceId, DeviceState, DeviceView, FleetView

_READY = DeviceState.READY

# Device ids by class, for one model.
Serving = Mapping[DeviceClass, list[DeviceId]]

# Up to here every device is looked at, and its reason is in the decision.
FULL_SCAN_DEVICES = 32
# Devices drawn of each class of a larger fleet. The best of k random ones is, for
# small k already, close to the best of all, and concurrent routers do not herd.
DRAW_PER_CLASS = 6
# The same when all classes are drawn from, whatever their order. Simulated with 40 and
# 1,000 devices, 4 saves as much energy-delay product as 8; 3 saves a fifth less.
DRAW_PER_CLASS_OF_ALL = 4
# Devices that are likely to hold the prompt's beginning, beside the drawn ones.
MAX_HOLDERS = 2
# The same when none of those could serve, before the request is refused: bounded, so
# that refusals stay cheap when a large fleet is overloaded.
SECOND_DRAW_PER_CLASS = 256
# Between two such searches for one model of a fleet that is full. Another refusal within
# this time is decided by the few devices drawn at first.
SECOND_DRAW_PAUSE_MS = 40.0
# Age at which the index of a large fleet is rebuilt. It holds only who serves what;
# load and state are always read from the view itself.
INDEX_MAX_AGE_MS = 500.0
# An urgent build takes about 0.5 us a device: at most 1 % of the time is spent on it.
INDEX_MIN_AGE_MS_PER_DEVICE = 0.05
# Devices that one decision adds to the index being rebuilt: about 10 us.
INDEX_DEVICES_PER_DECISION = 32

_Ids = dict[str, dict[DeviceClass, list[DeviceId]]]


class ModelIndex:
    """Who serves what in a large fleet, by model and class; rebuilt when it is old.

    It is rebuilt a little at each decision, so that none has to wait for all of it. A
    device that joined is overlooked until that is done, except by a request that would
    be refused.
    """

    def __init__(self) -> None:
        self._built_ms = -float("inf")
        self._version = -1
        self._ids: _Ids = {}
        self._next: _Ids = {}
        # What is left to enter, of which version.
        self._rest: Iterator[DeviceView] | None = None
        self._rest_version = -1
        # Devices of the view that was entered last, in full or in part.
        self._num_devices = 0

    def serving(
        self, view: FleetView, model: str, now_ms: float, *, urgent: bool = False
    ) -> Serving:
        """Device ids that serve the model, by class; do not change the lists.

        `urgent`: rebuild all as early as its cost allows, for a request about to be refused.
        """
        age_ms = now_ms - self._built_ms
        if view.version != self._version:
            num_devices = len(view.devices)
            if urgent or not self._ids:
                # While nobody joined, hardly anything is to be found that is not known, and
                # a rebuild that is under way will find it.
                old = age_ms >= INDEX_MAX_AGE_MS and self._rest is None
                joined = num_devices != self._num_devices
                if (old or joined) and age_ms >= num_devices * INDEX_MIN_AGE_MS_PER_DEVICE:
                    self._begin(view)
                    self._enter(num_devices + 1, now_ms)
            elif self._rest is None and age_ms >= INDEX_MAX_AGE_MS:
                self._begin(view)
        if self._rest is not None:
            self._enter(INDEX_DEVICES_PER_DECISION, now_ms)
        return self._ids.get(model, {})

    def _begin(self, view: FleetView) -> None:
        self._num_devices = len(view.devices)
        self._next, self._rest, self._rest_version = {}, iter(view.devices.values()), view.version

    def _enter(self, count: int, now_ms: float) -> None:
        """Enter up to `count` more devices; with the last one the new index is in force."""
        num_entered = 0
        for device in islice(self._rest or (), count):
            num_entered += 1
            for name in device.models:
                by_class = self._next.setdefault(name, {})
                by_class.setdefault(device.device_class, []).append(device.device_id)
        if num_entered < count:
            self._ids, self._next, self._rest = self._next, {}, None
            self._built_ms, self._version = now_ms, self._rest_version


def draw(
    ids: list[DeviceId], devices: Mapping[DeviceId, DeviceView], count: int, rng: random.Random
) -> list[DeviceView]:
    """Up to `count` different devices of `ids` that are in the view, at random."""
    size = len(ids)
    if size <= count:
        chosen: Iterable[DeviceId] = ids
    else:
        # A random place and a random stride that does not come round: each device is as
        # likely, who is drawn together varies, and it costs two random numbers.
        start = int(rng.random() * size)
        stride = 1 + int(rng.random() * ((size - 1) // max(1, count - 1)))
        chosen = [ids[(start + number * stride) % size] for number in range(count)]
    return [device for device_id in chosen if (device := devices.get(device_id)) is not None]


def with_room(devices: Iterable[DeviceView], model_name: str) -> list[DeviceView]:
    """Those of the devices that may have a place for one more request: a quick first look."""
    found = []
    for device in devices:
        model = device.models.get(model_name)
        if model is None or device.state is not _READY:
            continue
        places = model.slots + device.max_waiting
        if device.in_flight.get(model_name, 0) < places and model.running + model.waiting < places:
            found.append(device)
    return found
