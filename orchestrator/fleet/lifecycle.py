"""The life of each device, pure: `handle(event, now) -> effects`.

    ENROLLED -> READY <-> SUSPECT -> DOWN        DRAINING -> LEFT        REVOKED

- A connection starts with Hello and holds the device's newest epoch; an event of
  an older epoch changes nothing (fencing), so a device never appears twice. When
  another hub took a newer connection, the older one ends and the device is forgotten.
- A closed stream makes the device SUSPECT at once; it is DOWN when its lease,
  renewed by each heartbeat, ran out. Only a new Hello brings it back from DOWN.
- A connected device that misses heartbeats is SUSPECT until it shows life again.
  One whose requests make no progress is the business of orchestrator.fleet.health.
- Draining: nothing new; the device says goodbye when the last request ended. One that
  drains only to start again is READY with its next Hello.
- REVOKED is final.

Times are ms of one monotonic clock, passed in.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.fleet.lifecycle_events import (
    Close,
    CloseCause,
    Connected,
    ConnectionEvent,
    DrainRequested,
    Effect,
    Enrolled,
    Event,
    Forgotten,
    GoodbyeReceived,
    HeartbeatReceived,
    Lost,
    MovedAway,
    Progressed,
    Removed,
    RestartAnnounced,
    SendDrain,
    StateChanged,
    StreamClosed,
    Tick,
)
from orchestrator.fleet.view import DeviceId, DeviceState


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """Timing of leases, in ms.

    A lease of five heartbeats forgives lost ones; silence of two and a half makes
    a device SUSPECT.
    """

    heartbeat_interval_ms: int = 2_000
    lease_ms: int = 10_000
    silence_ms: int = 5_000


@dataclass(slots=True)
class _Life:
    state: DeviceState
    epoch: int = 0
    connected: bool = False
    lease_until_ms: float = 0.0
    heard_ms: float = 0.0
    # DRAINING by its own will, to come back.
    returns: bool = False


class Lifecycle:
    """States, leases and epochs of all devices of a hub; the only mutator is `handle`."""

    def __init__(self, terms: LeaseTerms) -> None:
        self.terms = terms
        self._lives: dict[DeviceId, _Life] = {}

    def state_of(self, device_id: DeviceId) -> DeviceState | None:
        """The device's state; None when it never enrolled."""
        life = self._lives.get(device_id)
        return None if life is None else life.state

    def epoch_of(self, device_id: DeviceId) -> int:
        """Epoch of the device's newest connection; 0 before the first."""
        life = self._lives.get(device_id)
        return 0 if life is None else life.epoch

    def is_current(self, device_id: DeviceId, epoch: int) -> bool:
        """Whether frames of this epoch are accepted now."""
        life = self._lives.get(device_id)
        return life is not None and life.connected and life.epoch == epoch

    def returns(self, device_id: DeviceId) -> bool:
        """Whether the device drains only to start again."""
        life = self._lives.get(device_id)
        return life is not None and life.returns

    def handle(self, event: Event, now_ms: float) -> tuple[Effect, ...]:
        """Apply one event; returns what the hub must do, in order."""
        match event:
            case Tick():
                return self._tick(now_ms)
            case Enrolled(device_id, state, epoch):
                if device_id not in self._lives:
                    known = DeviceState.SUSPECT if state is DeviceState.READY else state
                    lease_until_ms = now_ms + self.terms.lease_ms
                    self._lives[device_id] = _Life(known, epoch, lease_until_ms=lease_until_ms)
                return ()
        life = self._lives.get(event.device_id)
        if life is None or life.state is DeviceState.REVOKED:
            if isinstance(event, Connected):
                return (Close(event.device_id, event.epoch, CloseCause.REVOKED),)
            return ()
        match event:
            case Connected(device_id, epoch):
                return self._connect(device_id, life, epoch, now_ms)
            case DrainRequested(device_id):
                return self._drain(device_id, life)
            case Removed(device_id):
                return self._remove(device_id, life)
            case MovedAway(device_id, epoch):
                return self._forget(device_id, life, epoch)
        if not (life.connected and life.epoch == event.epoch):
            return ()
        return self._handle_of_connection(event, life, now_ms)

    def _handle_of_connection(
        self, event: ConnectionEvent, life: _Life, now_ms: float
    ) -> tuple[Effect, ...]:
        match event:
            case HeartbeatReceived(device_id) | Progressed(device_id):
                return self._hear(device_id, life, now_ms)
            case StreamClosed(device_id):
                return self._disconnect(device_id, life, said_goodbye=False)
            case GoodbyeReceived(device_id):
                return self._disconnect(device_id, life, said_goodbye=True)
            case RestartAnnounced(device_id):
                if life.state is DeviceState.DRAINING:
                    return ()
                life.returns = True
                return (_enter(device_id, life, DeviceState.DRAINING, "drains to restart"),)

    def check_integrity(self) -> None:
        """Raise when the states contradict one another."""
        for device_id, life in self._lives.items():
            offline = {
                DeviceState.ENROLLED,
                DeviceState.DOWN,
                DeviceState.LEFT,
                DeviceState.REVOKED,
            }
            if life.connected and life.state in offline:
                raise AssertionError(f"{device_id}: {life.state} and connected")
            if life.state is DeviceState.READY and not life.connected:
                raise AssertionError(f"{device_id}: READY without a connection")
            if life.connected and life.epoch == 0:
                raise AssertionError(f"{device_id}: connected without an epoch")

    def _connect(
        self, device_id: DeviceId, life: _Life, epoch: int, now_ms: float
    ) -> tuple[Effect, ...]:
        if epoch <= life.epoch:
            return (Close(device_id, epoch, CloseCause.REPLACED),)
        effects: list[Effect] = []
        if life.connected:
            effects.append(Close(device_id, life.epoch, CloseCause.REPLACED))
            effects.append(Lost(device_id, life.epoch))
        life.epoch = epoch
        life.connected = True
        life.heard_ms = now_ms
        life.lease_until_ms = now_ms + self.terms.lease_ms
        returns, life.returns = life.returns, False
        if life.state is DeviceState.DRAINING and not returns:
            effects.append(SendDrain(device_id, epoch))
        elif life.state is not DeviceState.READY:
            effects.append(_enter(device_id, life, DeviceState.READY, "hello"))
        return tuple(effects)

    def _hear(self, device_id: DeviceId, life: _Life, now_ms: float) -> tuple[Effect, ...]:
        life.heard_ms = now_ms
        life.lease_until_ms = now_ms + self.terms.lease_ms
        if life.state is DeviceState.SUSPECT:
            return (_enter(device_id, life, DeviceState.READY, "heard again"),)
        return ()

    def _disconnect(
        self, device_id: DeviceId, life: _Life, *, said_goodbye: bool
    ) -> tuple[Effect, ...]:
        life.connected = False
        effects: list[Effect] = []
        if said_goodbye:
            effects.append(_enter(device_id, life, DeviceState.LEFT, "goodbye"))
            effects.append(Close(device_id, life.epoch, CloseCause.GOODBYE))
        elif life.state is DeviceState.READY or life.returns:
            effects.append(_enter(device_id, life, DeviceState.SUSPECT, "stream closed"))
        effects.append(Lost(device_id, life.epoch))
        return tuple(effects)

    def _drain(self, device_id: DeviceId, life: _Life) -> tuple[Effect, ...]:
        if life.connected:
            if life.state is DeviceState.DRAINING and not life.returns:
                return ()
            life.returns = False
            entered = _enter(device_id, life, DeviceState.DRAINING, "drain requested")
            return (entered, SendDrain(device_id, life.epoch))
        if life.state is DeviceState.LEFT:
            return ()
        return (_enter(device_id, life, DeviceState.LEFT, "drained while away"),)

    def _remove(self, device_id: DeviceId, life: _Life) -> tuple[Effect, ...]:
        was_connected, life.connected = life.connected, False
        entered = _enter(device_id, life, DeviceState.REVOKED, "removed")
        if not was_connected:
            return (entered,)
        return (
            entered,
            Close(device_id, life.epoch, CloseCause.REVOKED),
            Lost(device_id, life.epoch),
        )

    def _forget(self, device_id: DeviceId, life: _Life, epoch: int) -> tuple[Effect, ...]:
        # The same epoch at two hubs: the registry lost its newest writes. The later one counts.
        if epoch < life.epoch:
            return ()
        del self._lives[device_id]
        if not life.connected:
            return (Forgotten(device_id),)
        return (
            Close(device_id, life.epoch, CloseCause.REPLACED),
            Lost(device_id, life.epoch),
            Forgotten(device_id),
        )

    def _tick(self, now_ms: float) -> tuple[Effect, ...]:
        effects: list[Effect] = []
        heard_after_ms = now_ms - self.terms.silence_ms
        for device_id, life in self._lives.items():
            if life.heard_ms >= heard_after_ms and life.lease_until_ms > now_ms:
                continue  # nearly all of them, nearly always
            if life.state not in (DeviceState.READY, DeviceState.SUSPECT, DeviceState.DRAINING):
                continue
            if now_ms >= life.lease_until_ms:
                drained = life.state is DeviceState.DRAINING and not life.returns
                gone = DeviceState.LEFT if drained else DeviceState.DOWN
                was_connected, life.connected = life.connected, False
                effects.append(_enter(device_id, life, gone, "lease ran out"))
                if was_connected:
                    effects.append(Close(device_id, life.epoch, CloseCause.SILENT))
                    effects.append(Lost(device_id, life.epoch))
            elif life.state is DeviceState.READY and now_ms - life.heard_ms > self.terms.silence_ms:
                effects.append(_enter(device_id, life, DeviceState.SUSPECT, "silent"))
        return tuple(effects)


def _enter(device_id: DeviceId, life: _Life, state: DeviceState, why: str) -> StateChanged:
    change = StateChanged(device_id, life.state, state, why)
    life.state = state
    return change
