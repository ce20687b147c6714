"""One stream of one device, and what the device said on it."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.fleet.lifecycle import LeaseTerms
from orchestrator.fleet.lifecycle_events import CloseCause
from orchestrator.fleet.view import DeviceId
from orchestrator.hub.outbox import Outbox
from shoal import __version__
from shoal.v1 import device_pb2, engine_pb2, inference_pb2

_REJECT_OF_CAUSE = {
    CloseCause.REPLACED: (
        device_pb2.Reject.REASON_REPLACED,
        "a newer connection of this device took over",
    ),
    CloseCause.REVOKED: (
        device_pb2.Reject.REASON_REVOKED,
        "the device was removed from the fleet; enrol it again with a new token",
    ),
    CloseCause.SILENT: (
        device_pb2.Reject.REASON_SHUTTING_DOWN,
        "no heartbeat came within the lease; connect again",
    ),
    CloseCause.HUB_STOPS: (
        device_pb2.Reject.REASON_SHUTTING_DOWN,
        "the hub stops; connect again",
    ),
}


class Rejected(Exception):
    """The hub does not take this connection; the device is told why."""

    def __init__(self, reason: device_pb2.Reject.Reason, message: str) -> None:
        super().__init__(message)
        self.frame = reject_frame(reason, message)


def reject_frame(reason: device_pb2.Reject.Reason, message: str) -> device_pb2.HubFrame:
    """The last frame of a stream that the hub ends."""
    return device_pb2.HubFrame(reject=device_pb2.Reject(reason=reason, message=message))


@dataclass(slots=True)
class DeviceConnection:
    """A connected device."""

    device_id: DeviceId
    name: str
    epoch: int
    protocol: int
    agent_version: str
    installation: device_pb2.Installation
    capabilities: device_pb2.CapabilityReport
    outbox: Outbox[device_pb2.HubFrame]
    models: dict[str, engine_pb2.ModelReport] = field(default_factory=dict)
    engines: dict[str, inference_pb2.EngineLoad] = field(default_factory=dict)
    load: device_pb2.DeviceLoad = field(default_factory=device_pb2.DeviceLoad)
    last_seen_unix_ms: int = 0
    clock_skew_ms: int = 0
    certificate_expires_unix_ms: int = 0
    upgrade: device_pb2.UpgradeProgress = field(default_factory=device_pb2.UpgradeProgress)

    def welcome(self, hub_id: str, terms: LeaseTerms, cache_digest: bytes) -> None:
        """Queue the hub's first frame."""
        welcome = device_pb2.Welcome(
            protocol=self.protocol,
            epoch=self.epoch,
            heartbeat_interval_ms=terms.heartbeat_interval_ms,
            lease_ms=terms.lease_ms,
            hub_id=hub_id,
            hub_version=__version__,
            cache_digest=cache_digest,
        )
        self.send(device_pb2.HubFrame(welcome=welcome))

    def send(self, frame: device_pb2.HubFrame) -> bool:
        """Queue a frame; a device that lets its queue fill up is cut off, and False returned."""
        if self.outbox.put(frame):
            return True
        self.outbox.discard()
        return False

    def end(self, cause: CloseCause) -> None:
        """End the stream, telling the device why where it does not know."""
        rejection = _REJECT_OF_CAUSE.get(cause)
        self.outbox.close(None if rejection is None else reject_frame(*rejection))
