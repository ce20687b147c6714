"""Which devices to look at: all of a small fleet, a few drawn by class of a large one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from orchestrator.fleet.view import DeviceId, DeviceView

# Up to here every device is looked at, and its reason is in the decision.
FULL_SCAN_DEVICES = 32
# Devices with room drawn of each class of a larger fleet. The best of k random ones is,
# for small k already, close to the best of all, and concurrent routers do not herd.
DRAW_PER_CLASS = 6
# The same when all classes are drawn from, whatever their order. Simulated with 40 and
# 1,000 devices, 4 saves as much energy-delay product as 8; 3 saves a fifth less.
DRAW_PER_CLASS_OF_ALL = 4
# Devices that are likely to hold the prompt's beginning, beside the drawn ones.
MAX_HOLDERS = 2
# Drawn of a class when all that were drawn with room had failed the request already, and
# of all classes for the predicted pace of a queue.
MANY = 256


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
