"""The fleet view: what the router may know, as immutable values.

The view is advisory: the agent alone admits a request.
"""

from __future__ import annotations

from collections.abc import Mapping
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


@dataclass(frozen=True, slots=True)
class FleetView:
    """All devices of one hub at one moment; `version` grows with each change."""

    devices: Mapping[DeviceId, DeviceView]
    version: int = 0
