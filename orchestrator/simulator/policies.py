"""Who gets a request: the router, and the policies that it is compared with."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from itertools import count
from typing import Protocol

from orchestrator.fleet.view import DeviceId, DeviceState, DeviceView, FleetView
from orchestrator.queueing.waiting_queue import QueueLimits
from orchestrator.request import Objective, RouteRequest
from orchestrator.routing.estimator import Outcome
from orchestrator.routing.router import Router
from orchestrator.simulator.device import SimDevice
from orchestrator.simulator.hub_queue import WAITING_SHARE, HubQueue


class Policy(StrEnum):
    """Policies that can be compared."""

    ROUND_ROBIN = "round_robin"
    LEAST_LOADED = "least_loaded"
    SHOAL_LATENCY = "shoal_latency"
    SHOAL_EDP = "shoal_edp"

    @property
    def objective(self) -> Objective:
        """What a request of this policy asks for."""
        return Objective.EDP if self is Policy.SHOAL_EDP else Objective.LATENCY


class LiveFleet(Mapping[DeviceId, DeviceView]):
    """The devices as a mapping of views that are made when somebody looks.

    The router is called between events only, so it sees a moment all the same; a copy
    for each request would cost more than the simulation at 100,000 devices.
    """

    def __init__(self, devices: Mapping[DeviceId, SimDevice]) -> None:
        self._devices = devices

    def __getitem__(self, device_id: DeviceId) -> DeviceView:
        return self._devices[device_id].view()

    def __iter__(self) -> Iterator[DeviceId]:
        return iter(self._devices)

    def __len__(self) -> int:
        return len(self._devices)


class Placer(Protocol):
    """A policy at work. `queue`: where requests wait that no device has room for."""

    queue: HubQueue | None

    def place(
        self, request: RouteRequest, exclude: frozenset[DeviceId], now_ms: float
    ) -> DeviceId | None:
        """The device to send to; None: it waits, or without a queue is refused.

        Raises ShoalError when it is refused although there is a queue.
        """

    def changed(self, device: SimDevice) -> None:
        """The device's load or state changed."""

    def observe(self, outcome: Outcome) -> None:
        """A request ended."""


class ShoalPlacer:
    """The real router and estimator, and the hub's queue before them."""

    def __init__(self, devices: Mapping[DeviceId, SimDevice], seed: int) -> None:
        self._router = Router(rng=random.Random(seed))  # noqa: S311
        for device in devices.values():
            places = math.ceil(WAITING_SHARE * device.kind.slots)
            device.max_waiting = min(device.max_waiting, places)
        self._view = FleetView(LiveFleet(devices))
        self.queue: HubQueue | None = HubQueue(self._router, self._view, QueueLimits())
        self.place = self.queue.place

    def changed(self, device: SimDevice) -> None:
        """Note whether it has room; all else is read when somebody looks."""
        self._view.serving.put(device.view())

    def observe(self, outcome: Outcome) -> None:
        """Let the estimator learn."""
        self._router.observe(outcome)


class RoundRobinPlacer:
    """One device after the other, those that cannot take the request passed over."""

    queue: HubQueue | None = None

    def __init__(self, devices: Mapping[DeviceId, SimDevice], seed: int) -> None:
        self._order = list(devices.values())
        random.Random(seed).shuffle(self._order)  # noqa: S311
        self._next = 0

    def place(
        self, request: RouteRequest, exclude: frozenset[DeviceId], now_ms: float
    ) -> DeviceId | None:
        """The next one that can."""
        for offset in range(len(self._order)):
            device = self._order[(self._next + offset) % len(self._order)]
            if _can_take(device, request, exclude):
                self._next = (self._next + offset + 1) % len(self._order)
                return device.device_id
        return None

    def changed(self, device: SimDevice) -> None:
        """Nothing to note."""

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""


class LeastLoadedPlacer:
    """The device with the fewest requests, of all that can take it; ties at random.

    A heap with an entry for each change of load; outdated entries are dropped when met.
    """

    queue: HubQueue | None = None

    def __init__(self, devices: Mapping[DeviceId, SimDevice], seed: int) -> None:
        self._rng = random.Random(seed)  # noqa: S311
        self._numbers = count()
        self._heap: list[tuple[int, float, int, SimDevice]] = []
        self._newest: dict[DeviceId, int] = {}
        for device in devices.values():
            self.changed(device)

    def place(
        self, request: RouteRequest, exclude: frozenset[DeviceId], now_ms: float
    ) -> DeviceId | None:
        """The least loaded one that can."""
        passed_over = []
        found: DeviceId | None = None
        while self._heap and found is None:
            entry = heapq.heappop(self._heap)
            if entry[2] != self._newest[entry[3].device_id]:
                continue
            passed_over.append(entry)
            if _can_take(entry[3], request, exclude):
                found = entry[3].device_id
        for entry in passed_over:
            heapq.heappush(self._heap, entry)
        return found

    def changed(self, device: SimDevice) -> None:
        """Enter the device's new load."""
        number = self._newest[device.device_id] = next(self._numbers)
        heapq.heappush(self._heap, (device.num_held, self._rng.random(), number, device))

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""


def _can_take(device: SimDevice, request: RouteRequest, exclude: frozenset[DeviceId]) -> bool:
    return (
        device.state is DeviceState.READY
        and request.model in device.served
        and device.device_id not in exclude
        and device.has_room(request.model)
    )


_PLACERS: dict[Policy, Callable[[Mapping[DeviceId, SimDevice], int], Placer]] = {
    Policy.ROUND_ROBIN: RoundRobinPlacer,
    Policy.LEAST_LOADED: LeastLoadedPlacer,
    Policy.SHOAL_LATENCY: ShoalPlacer,
    Policy.SHOAL_EDP: ShoalPlacer,
}


def placer(policy: Policy, devices: Mapping[DeviceId, SimDevice], seed: int) -> Placer:
    """The policy over these devices."""
    return _PLACERS[policy](devices, seed)
