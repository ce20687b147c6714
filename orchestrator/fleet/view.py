"""The fleet view: what the router may know, as immutable values.

The view is advisory: the agent alone admits a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

DeviceId = NewType("DeviceId", str)


class DeviceClass(StrEnum):
    """Kinds of edge device; the cloud is a tier, not a class."""

    ARM_CPU = "arm_cpu"
    X86_CPU = "x86_cpu"
    GPU = "gpu"
    NPU = "npu"


class DeviceState(StrEnum):
    """Life of a device; only READY takes new requests."""

    ENROLLED = "ENROLLED"
    READY = "READY"
    SUSPECT = "SUSPECT"
    DOWN = "DOWN"
    DRAINING = "DRAINING"
    LEFT = "LEFT"
    REVOKED = "REVOKED"


# Looked up once: enum attribute access is slow.
_READY = DeviceState.READY


@dataclass(frozen=True, slots=True)
class Unwell:
    """Why the hub trusts a device with no requests for a model.

    `ejected`: others are preferred to it; a request that names it is served all the same.
    """

    text: str
    ejected: bool = False

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model variant that a device has loaded, with its measured speed and load.

    Speeds are tokens/s as the engine measured them itself; 0 means not measured.
    """

    name: str
    fingerprint: str
    num_parameters: int
    context_tokens: int
    slots: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    # Total over 2^i sequences; empty when not measured.
    decode_batch_tokens_per_s: tuple[float, ...] = ()
    size_bytes: int = 0
    kv_bytes_per_token: int = 0
    # May take requests: loaded, and not `unwell`, which is why the hub trusts it with none.
    ready: bool = True
    unwell: Unwell | None = None
    # Not ready yet, but will be.
    loading: bool = False
    running: int = 0
    waiting: int = 0
    waiting_prefill_tokens: int = 0
    # Devices of one space can use one another's KV blocks in the shared tier; empty: none.
    block_space: str = ""
    # Measured speed of the device's link to that tier; 0: not measured.
    shared_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One device as the router sees it.

    `in_flight` counts the hub's own reservations (requests sent and not ended) by
    model name: it is newer than the load that the device reported.
    """

    device_id: DeviceId
    name: str
    device_class: DeviceClass
    state: DeviceState
    models: Mapping[str, ServedModel]
    in_flight: Mapping[str, int] = field(default_factory=dict)
    # Prompt tokens reserved and not yet prefilled, by model name.
    in_flight_prefill_tokens: Mapping[str, int] = field(default_factory=dict)
    # The same prompt by prompt, in the order sent.
    in_flight_prompts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # When each reserved request was sent, in Unix ms, oldest first, by model name.
    in_flight_since: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    emulated: bool = False
    tdp_w: float | None = None
    power_w: float | None = None
    power_estimated: bool = True
    memory_bandwidth_gb_s: float | None = None
    conditions: tuple[str, ...] = ()
    # Extra requests the device may hold beyond its slots, per model.
    max_waiting: int = 16


def num_occupied(device: DeviceView, model: ServedModel) -> int:
    """Requests the device holds for the model: the hub's reservations or its own report."""
    reserved, reported = device.in_flight.get(model.name, 0), model.running + model.waiting
    return reserved if reserved > reported else reported


@dataclass(slots=True)
class FleetView:
    """All devices of one hub, as immutable values, and who of them serves what.

    A hub has one, which shows every change at once: it is read between two awaits and never
    copied, since a copy of a large fleet takes longer than a decision. `serving` is made of
    `devices` when it is not given.
    """

    devices: Mapping[DeviceId, DeviceView]
    _serving: ServingIndex | None = None

    @property
    def serving(self) -> ServingIndex:
        """Who serves what, and who of them has room."""
        if self._serving is None:
            self._serving = ServingIndex(self.devices.values())
        return self._serving


class IdSet:
    """Device ids that can be drawn from by their place; adding and removing take no search."""

    __slots__ = ("_places", "ids")

    def __init__(self) -> None:
        # In no order. Do not change it.
        self.ids: list[DeviceId] = []
        self._places: dict[DeviceId, int] = {}

    def add(self, device_id: DeviceId) -> None:
        """Enter the id, unless it is there."""
        if device_id not in self._places:
            self._places[device_id] = len(self.ids)
            self.ids.append(device_id)

    def discard(self, device_id: DeviceId) -> None:
        """Take the id out, if it is there: the last one takes its place."""
        place = self._places.pop(device_id, None)
        if place is None:
            return
        last = self.ids.pop()
        if last != device_id:
            self.ids[place] = last
            self._places[last] = place


class Group:
    """Devices of one class that serve a model, in whatever state; `open`: may take a request."""

    __slots__ = ("all", "open")

    def __init__(self) -> None:
        self.all = IdSet()
        self.open = IdSet()


class ServingIndex:
    """Who serves each model, by class, and who of them has room now."""

    def __init__(self, devices: Iterable[DeviceView] = ()) -> None:
        self._groups: dict[str, dict[DeviceClass, Group]] = {}
        for device in devices:
            self.put(device)

    def groups(self, model_name: str) -> Mapping[DeviceClass, Group]:
        """The devices that serve the model; a class may be empty."""
        return self._groups.get(model_name, {})

    def put(self, device: DeviceView, before: DeviceView | None = None) -> None:
        """Enter the device, which was `before` when it was entered last."""
        device_id, device_class = device.device_id, device.device_class
        if before is not None and (
            before.device_class is not device_class or before.models.keys() != device.models.keys()
        ):
            self.remove(before)
        for name, model in device.models.items():
            by_class = self._groups.setdefault(name, {})
            group = by_class.get(device_class)
            if group is None:
                group = by_class[device_class] = Group()
            group.all.add(device_id)
            if _is_open(device, model):
                group.open.add(device_id)
            else:
                group.open.discard(device_id)

    def remove(self, device: DeviceView) -> None:
        """Take the device out, as it was entered last."""
        for name in device.models:
            by_class = self._groups.get(name, {})
            group = by_class.get(device.device_class)
            if group is None:
                continue
            group.all.discard(device.device_id)
            group.open.discard(device.device_id)
            if not group.all.ids:
                del by_class[device.device_class]
                if not by_class:
                    del self._groups[name]


def _is_open(device: DeviceView, model: ServedModel) -> bool:
    """Whether a request for the model, if it asks for nothing special, may go there."""
    return (
        device.state is _READY
        and model.ready
        and num_occupied(device, model) < model.slots + device.max_waiting
    )
