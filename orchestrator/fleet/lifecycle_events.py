"""What happens to devices, and what the hub must do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.fleet.view import DeviceId, DeviceState


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A device became known; `state` is what the registry remembers of it.

    A device that an earlier hub process held gets one lease to come back; `epoch` is
    that of the connection it had.
    """

    device_id: DeviceId
    state: DeviceState = DeviceState.ENROLLED
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Connected:
    """A new stream said Hello and was given this epoch."""

    device_id: DeviceId
    epoch: int


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    """A heartbeat came on the stream of this epoch."""

    device_id: DeviceId
    epoch: int


@dataclass(frozen=True, slots=True)
class Progressed:
    """An inference frame came on the stream of this epoch."""

    device_id: DeviceId
    epoch: int


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """The stream of this epoch ended without a goodbye."""

    device_id: DeviceId
    epoch: int


@dataclass(frozen=True, slots=True)
class GoodbyeReceived:
    """The device leaves in good order."""

    device_id: DeviceId
    epoch: int


@dataclass(frozen=True, slots=True)
class RestartAnnounced:
    """The device finishes what runs, ends and comes back by itself."""

    device_id: DeviceId
    epoch: int


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """An operator wants the device to finish what runs and take nothing new."""

    device_id: DeviceId


@dataclass(frozen=True, slots=True)
class Removed:
    """An operator revoked the device."""

    device_id: DeviceId


@dataclass(frozen=True, slots=True)
class MovedAway:
    """Another hub took a connection of this epoch: the device is that hub's business."""

    device_id: DeviceId
    epoch: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


ConnectionEvent = HeartbeatReceived | Progressed | StreamClosed | GoodbyeReceived | RestartAnnounced
Event = ConnectionEvent | Enrolled | Connected | DrainRequested | Removed | MovedAway | Tick


class CloseCause(StrEnum):
    """Why the hub ends a stream."""

    REPLACED = "replaced"
    REVOKED = "revoked"
    GOODBYE = "goodbye"
    SILENT = "silent"
    HUB_STOPS = "hub_stops"


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The device is in another state; `why` is for the log."""

    device_id: DeviceId
    old: DeviceState
    new: DeviceState
    why: str


@dataclass(frozen=True, slots=True)
class Close:
    """End the stream of this epoch."""

    device_id: DeviceId
    epoch: int
    cause: CloseCause


@dataclass(frozen=True, slots=True)
class Lost:
    """Requests sent on the stream of this epoch get no more frames: fail or move them."""

    device_id: DeviceId
    epoch: int


@dataclass(frozen=True, slots=True)
class SendDrain:
    """Tell the device to drain."""

    device_id: DeviceId
    epoch: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Nothing is known of the device here from now on."""

    device_id: DeviceId


Effect = StateChanged | Close | Lost | SendDrain | Forgotten
