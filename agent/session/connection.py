"""The life of the outbound stream as a state machine: (event, now) -> effects.

No I/O and no clock of its own. `deadline()` says when it wants a `Tick` at the
latest; the shell (agent/rpc/link.py) carries out the effects in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from agent.session.backoff import Backoff
from agent.session.errors import ExitCode
from agent.session.rejection import FATAL, RejectReason

# A connection that lived so long proves that the hub is well: the next loss is
# a fresh one and its first retry is quick.
LIVED_S = 5.0
# From dialling to Welcome, TLS handshake included.
GREETING_S = 15.0
USUAL_INTERVAL_S = 2.0
# A hub that was not there so often in a row may have moved.
LOOK_UP_AFTER = 3


class Phase(Enum):
    """Where the connection stands."""

    WAITING = auto()  # until the retry is due
    DIALLING = auto()  # dialled, Hello on its way, no Welcome yet
    CONNECTED = auto()
    STOPPED = auto()


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The hub took the connection; times are the hub's wishes."""

    epoch: int
    heartbeat_interval_s: float
    lease_s: float


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The hub answered a heartbeat; 0 keeps the earlier value."""

    next_interval_s: float
    lease_s: float


@dataclass(frozen=True, slots=True)
class Rejected:
    """The hub refused the stream."""

    reason: RejectReason
    message: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The stream ended or could not be opened."""

    why: str


@dataclass(frozen=True, slots=True)
class Reachable:
    """The hub's port answers after it did not (agent/rpc/path.py): the network is back."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Say goodbye (when connected) and stop for good."""

    reason: str


Event = Tick | Welcomed | Acknowledged | Rejected | Broken | Reachable | Leave


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a stream to the `attempt`-th hub address (modulo their number) and send Hello."""

    attempt: int


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Send one heartbeat."""


@dataclass(frozen=True, slots=True)
class Announce:
    """The connection is up under this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the stream, if any; running requests are cancelled in the engines."""

    why: str


@dataclass(frozen=True, slots=True)
class SendGoodbye:
    """Send Goodbye under `epoch` and let it out before the stream closes."""

    reason: str
    epoch: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the agent."""

    exit_code: ExitCode
    message: str


@dataclass(frozen=True, slots=True)
class LookUpHubs:
    """Ask the gateway where the hubs are now; the next dial uses what it says."""


Effect = Dial | SendHeartbeat | Announce | Drop | SendGoodbye | GiveUp | LookUpHubs


class Connection:
    """State of the one outbound stream; the only mutator is `handle`."""

    def __init__(self, backoff: Backoff, *, now: float) -> None:
        self._backoff = backoff
        self.phase = Phase.WAITING
        self.epoch = 0
        # Of the last connection, which the next one's must pass; 0 before the first.
        self.last_epoch = 0
        self._num_dials = 0
        self._num_lost = 0  # since the last Welcome
        self._retry_at = now
        self._since = now
        self._interval_s = 0.0
        self._lease_s = 0.0
        self._next_heartbeat_at = 0.0
        self._last_heard_at = 0.0

    @property
    def heartbeat_interval_s(self) -> float:
        """The hub's latest wish; before the first welcome its usual one."""
        return self._interval_s or USUAL_INTERVAL_S

    def deadline(self) -> float | None:
        """When a Tick is wanted at the latest; None: never."""
        if self.phase is Phase.WAITING:
            return self._retry_at
        if self.phase is Phase.DIALLING:
            return self._since + GREETING_S
        if self.phase is Phase.CONNECTED:
            return min(self._next_heartbeat_at, self._last_heard_at + self._lease_s)
        return None

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event at monotonic time `now` (s); effects are to be done in order."""
        if self.phase is Phase.STOPPED:
            return []
        if isinstance(event, Tick):
            return self._tick(now)
        if isinstance(event, Leave):
            return self._leave(event)
        if isinstance(event, Reachable):
            return self._reachable(now)
        if self.phase is Phase.WAITING:
            return []  # an echo of a stream that was dropped already
        if isinstance(event, Broken):
            return self._lose(event.why, self._backoff_after_life(now), now)
        if isinstance(event, Rejected):
            return self._rejected(event, now)
        if isinstance(event, Welcomed):
            return self._welcomed(event, now)
        return self._acknowledged(event, now)

    def check_integrity(self) -> None:
        """Raise RuntimeError when the state contradicts itself."""
        if (self.epoch != 0) != (self.phase is Phase.CONNECTED):
            raise RuntimeError(f"epoch {self.epoch} in phase {self.phase}")
        if (self.deadline() is None) != (self.phase is Phase.STOPPED):
            raise RuntimeError(f"no deadline in phase {self.phase}")
        if self.phase is Phase.CONNECTED and not 0 < self._interval_s < self._lease_s:
            raise RuntimeError("the heartbeat interval must be shorter than the lease")

    def _tick(self, now: float) -> list[Effect]:
        deadline = self.deadline()
        if deadline is None or now < deadline:
            return []
        if self.phase is Phase.WAITING:
            self.phase, self._since = Phase.DIALLING, now
            self._num_dials += 1
            return [Dial(self._num_dials - 1)]
        if self.phase is Phase.DIALLING:
            why = f"no welcome within {GREETING_S:g} s"
            return self._lose(why, self._backoff.next_delay_s(), now)
        if now >= self._last_heard_at + self._lease_s:
            why = f"the hub did not answer for {self._lease_s:g} s"
            return self._lose(why, self._backoff_after_life(now), now)
        self._next_heartbeat_at = now + self._interval_s
        return [SendHeartbeat()]

    def _reachable(self, now: float) -> list[Effect]:
        """Do not wait out a pause, or TCP's own in a dial, that began without a network.

        Jittered over half a heartbeat: a whole fleet sees its hub come back at one moment.
        """
        delay_s = self._backoff.within_s(self.heartbeat_interval_s / 2)
        if self.phase is Phase.WAITING:
            self._retry_at = min(self._retry_at, now + delay_s)
        elif self.phase is Phase.DIALLING:
            return self._lose("the hub's port answers again", delay_s, now)
        return []

    def _welcomed(self, event: Welcomed, now: float) -> list[Effect]:
        if self.phase is not Phase.DIALLING or event.epoch <= 0:
            return self._lose("unexpected welcome", self._backoff.next_delay_s(), now)
        self.phase, self.epoch, self._since = Phase.CONNECTED, event.epoch, now
        self.last_epoch = event.epoch
        self._set_times(event.heartbeat_interval_s, event.lease_s)
        self._num_lost = 0
        self._last_heard_at = now
        self._next_heartbeat_at = now
        return [Announce(event.epoch)]

    def _acknowledged(self, event: Acknowledged, now: float) -> list[Effect]:
        if self.phase is not Phase.CONNECTED:
            return self._lose("acknowledged before welcome", self._backoff.next_delay_s(), now)
        sent_at = self._next_heartbeat_at - self._interval_s
        self._set_times(event.next_interval_s or self._interval_s, event.lease_s or self._lease_s)
        self._last_heard_at = now
        self._next_heartbeat_at = sent_at + self._interval_s
        return []

    def _set_times(self, interval_s: float, lease_s: float) -> None:
        self._interval_s = min(max(interval_s, 0.05), 300.0)
        self._lease_s = max(lease_s, 2 * self._interval_s)

    def _rejected(self, event: Rejected, now: float) -> list[Effect]:
        fatal = FATAL.get(event.reason)
        if fatal is not None:
            exit_code, remedy = fatal
            message = f"{event.message}: {remedy}" if event.message else remedy
            self.phase, self.epoch = Phase.STOPPED, 0
            return [Drop(message), GiveUp(exit_code, message)]
        if event.reason is RejectReason.SHUTTING_DOWN:
            return self._lose("the hub is shutting down", self._backoff.soon_s(), now)
        why = f"refused: {event.message or event.reason.name.lower()}"
        return self._lose(why, self._backoff.next_delay_s(), now)

    def _backoff_after_life(self, now: float) -> float:
        if self.phase is Phase.CONNECTED and now - self._since >= LIVED_S:
            self._backoff.reset()
        return self._backoff.next_delay_s()

    def _lose(self, why: str, delay_s: float, now: float) -> list[Effect]:
        self.phase, self.epoch = Phase.WAITING, 0
        self._retry_at = now + delay_s
        self._num_lost += 1
        return [Drop(why)] if self._num_lost % LOOK_UP_AFTER else [Drop(why), LookUpHubs()]

    def _leave(self, event: Leave) -> list[Effect]:
        goodbye: list[Effect] = []
        if self.phase is Phase.CONNECTED:
            goodbye.append(SendGoodbye(event.reason, self.epoch))
        self.phase, self.epoch = Phase.STOPPED, 0
        return [*goodbye, Drop(event.reason), GiveUp(ExitCode.OK, event.reason)]
