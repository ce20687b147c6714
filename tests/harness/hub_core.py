"""Placement with scripted device lines and a hand-moved clock, for pure tests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.config import HubConfig
from orchestrator.fleet.view import DeviceId, DeviceState
from orchestrator.fleet.view_store import ViewStore
from orchestrator.hub import convert
from orchestrator.hub.clock import Clock
from orchestrator.hub.placement import Placement
from orchestrator.hub.placing import PlacementParts
from orchestrator.hub.session import GatewaySession
from orchestrator.routing.record import DecisionRecord
from orchestrator.routing.router import Router
from shoal.v1 import device_pb2, inference_pb2
from tests.harness.hub_rig import MODEL, model_report


class HandClock(Clock):
    """Time that moves only when the test says so."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000.0

    def monotonic_ms(self) -> float:
        return self.now_ms

    def unix_ms(self) -> int:
        return int(self.now_ms)


@dataclass
class Lines:
    """Streams of scripted devices: epoch by device, and what was sent on each."""

    epochs: dict[DeviceId, int] = field(default_factory=dict)
    sent: list[tuple[DeviceId, inference_pb2.InferenceCommand]] = field(default_factory=list)

    def send(self, device_id: DeviceId, frame: device_pb2.HubFrame) -> int | None:
        epoch = self.epochs.get(device_id)
        if epoch is not None:
            self.sent.append((device_id, frame.inference))
        return epoch


class Records:
    """Keeps ended requests' records in a list."""

    def __init__(self) -> None:
        self.kept: list[DecisionRecord] = []

    def keep(self, record: DecisionRecord) -> None:
        self.kept.append(record)


class HubCore:
    """A placement core with devices `d0`, `d1`, ... that are READY."""

    def __init__(self, num_devices: int, *, slots: int = 4, places: int = 16) -> None:
        """`places`: requests that a device holds beyond its slots."""
        self.clock = HandClock()
        self.views = ViewStore()
        self.lines = Lines()
        self.records = Records()
        config = HubConfig("h1", "", Path(), Path())
        self.placement = Placement(
            PlacementParts(config, Router(), self.views, self.records, self.clock),  # type: ignore[arg-type]
            self.lines,
        )
        self.slots, self.places = slots, places
        for number in range(num_devices):
            self.connect(DeviceId(f"d{number}"), 1)

    def connect(self, device_id: DeviceId, epoch: int) -> None:
        hello = device_pb2.Hello(models=[model_report(slots=self.slots)])
        hello.capabilities.device_class = "x86_cpu"
        view = convert.device_view(device_id, device_id, DeviceState.READY, hello)
        self.lines.epochs[device_id] = epoch
        self.views.put(replace(view, max_waiting=self.places))

    def wait(self, seconds: float) -> None:
        """Let time pass with the hub's timer running."""
        until_ms = self.clock.now_ms + 1_000 * seconds
        while self.clock.now_ms < until_ms:
            self.clock.now_ms = min(until_ms, self.clock.now_ms + 250)
            self.placement.tick()

    def unwell(self, device_id: str) -> str:
        view = self.views.get(DeviceId(device_id))
        return "" if view is None else str(view.models[MODEL].unwell or "")

    def probes(self) -> list[str]:
        names = [sent.submit.request_id for _, sent in self.lines.sent]
        return [name for name in names if name.startswith("shoal-probe")]

    def disconnect(self, device_id: DeviceId) -> None:
        epoch = self.lines.epochs.pop(device_id)
        self.views.set_state(device_id, DeviceState.SUSPECT)
        self.placement.on_lost(device_id, epoch)

    def submit(self, session: GatewaySession, request_id: str, **fields: object) -> None:
        request = inference_pb2.GenerateRequest(
            request_id=request_id, model=MODEL, text="hello", **fields
        )
        self.placement.submit(session, request)


async def updates_of(session: GatewaySession) -> list[inference_pb2.SequenceUpdate]:
    """What waits for the gateway; at least one frame must wait."""
    return [update for frame in await session.take() for update in frame.updates]
