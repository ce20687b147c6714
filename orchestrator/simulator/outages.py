"""Devices that go away and come back, through the hub's own lifecycle."""

from __future__ import annotations

import random
from dataclasses import dataclass

from orchestrator.fleet.lifecycle import LeaseTerms, Lifecycle
from orchestrator.fleet.lifecycle_events import (
    Connected,
    Effect,
    Enrolled,
    HeartbeatReceived,
    Lost,
    StateChanged,
    StreamClosed,
    Tick,
)
from orchestrator.simulator.device import SimDevice

_TICK_MS = 500.0
_MS_PER_HOUR = 3_600_000.0


@dataclass(slots=True)
class Outage:
    """One device's absence. `silent`: it freezes, and only its missing heartbeats tell."""

    device: SimDevice
    silent: bool
    until_ms: float
    lifecycle: Lifecycle


class Outages:
    """Draws failures at random and asks the real state machine what the hub makes of them.

    Only a device that is away is followed: a healthy one renews its lease, which changes
    nothing, so its heartbeats need not happen.
    """

    def __init__(
        self, devices: list[SimDevice], per_device_hour: float, outage_s: float, seed: int
    ) -> None:
        self._devices = devices
        self._outage_ms = outage_s * 1000.0
        self._per_ms = len(devices) * per_device_hour / _MS_PER_HOUR
        self._rng = random.Random(seed)  # noqa: S311
        self._terms = LeaseTerms()
        self._away: dict[str, Outage] = {}
        self.num_failures = 0

    def next_failure_ms(self, now_ms: float) -> float | None:
        """When the next device fails; None: never."""
        return now_ms + self._rng.expovariate(self._per_ms) if self._per_ms > 0 else None

    def begin(self, now_ms: float) -> tuple[Outage, tuple[Effect, ...]] | None:
        """Let a random device fail; None when that one is away already."""
        device = self._rng.choice(self._devices)
        if device.device_id in self._away:
            return None
        silent = self._rng.random() < 0.5
        until_ms = now_ms + self._rng.expovariate(1.0) * self._outage_ms
        lifecycle = Lifecycle(self._terms)
        outage = Outage(device, silent, until_ms, lifecycle)
        # The last heartbeat came within one interval before the failure.
        heard_ms = now_ms - self._rng.random() * self._terms.heartbeat_interval_ms
        lifecycle.handle(Enrolled(device.device_id), heard_ms)
        lifecycle.handle(Connected(device.device_id, device.epoch), heard_ms)
        lifecycle.handle(HeartbeatReceived(device.device_id, device.epoch), heard_ms)
        self._away[device.device_id] = outage
        self.num_failures += 1
        if silent:
            return outage, ()
        return outage, lifecycle.handle(StreamClosed(device.device_id, device.epoch), now_ms)

    def tick(self, outage: Outage, now_ms: float) -> tuple[tuple[Effect, ...], float | None]:
        """Let time pass for one absence; effects, and the time of the next look at it."""
        device = outage.device
        if now_ms < outage.until_ms:
            next_ms = min(outage.until_ms, now_ms + _TICK_MS)
            return outage.lifecycle.handle(Tick(), now_ms), next_ms
        # What was on the device ended with its old connection.
        device.epoch += 1
        del self._away[device.device_id]
        return outage.lifecycle.handle(Connected(device.device_id, device.epoch), now_ms), None


def apply_states(device: SimDevice, effects: tuple[Effect, ...]) -> bool:
    """Show new states in the device's view; whether its requests are lost."""
    lost = False
    for effect in effects:
        if isinstance(effect, StateChanged):
            device.set_state(effect.new)
        lost = lost or isinstance(effect, Lost)
    return lost
