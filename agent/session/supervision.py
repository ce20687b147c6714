"""The life of one engine child process as a state machine: (event, now) -> effects."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

# The first restart is at once but for the time a port or file needs to be let go.
FIRST_RESTART_S = 0.2
MAX_RESTART_S = 15.0
CRASH_WINDOW_S = 60.0
MAX_CRASHES_IN_WINDOW = 5
MAX_FAILED_STARTS = 3
# Loading a large model from an SD card takes minutes; the child is alive meanwhile.
READY_WITHIN_S = 600.0
STOP_WITHIN_S = 5.0


class EngineState(Enum):
    """Where the engine stands."""

    IDLE = auto()
    STARTING = auto()
    READY = auto()
    KILLING = auto()  # told to die, not dead yet; it will be restarted
    BACKING_OFF = auto()
    FAILED = auto()
    STOPPING = auto()
    STOPPED = auto()


@dataclass(frozen=True, slots=True)
class Start:
    """Bring the engine up."""


@dataclass(frozen=True, slots=True)
class BecameReady:
    """The child answered that it serves."""


@dataclass(frozen=True, slots=True)
class Unresponsive:
    """The child lives and does not answer."""

    why: str


@dataclass(frozen=True, slots=True)
class Exited:
    """The child is gone; `reason` is its last words or the signal's name.

    `hopeless`: it said that it can never serve this model, so no further try is made.
    """

    reason: str
    hopeless: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """End the engine for good."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = Start | BecameReady | Unresponsive | Exited | Stop | Tick


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start the child process."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask the child to end (SIGTERM)."""


@dataclass(frozen=True, slots=True)
class Kill:
    """End the child now (SIGKILL)."""


@dataclass(frozen=True, slots=True)
class FailRunning:
    """Fail the requests that run in this engine."""

    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the hub the model's new state; `failure` only with FAILED."""

    state: EngineState
    failure: str = ""


Effect = Spawn | Terminate | Kill | FailRunning | Report


class Supervision:
    """Restarts one engine with backoff and gives up on a crash loop, unless it is `patient`.

    Patient: what the child waits for is not ours to start, and may come at any time.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self._patient = patient
        self.state = EngineState.IDLE
        self.failure = ""
        self.num_restarts = 0
        self._crashes: deque[float] = deque()
        self._num_failed_starts = 0
        self._wake_at: float | None = None
        self._kill_reason = ""

    @property
    def has_child(self) -> bool:
        """True while a child process is believed to exist."""
        return self.state in (
            EngineState.STARTING,
            EngineState.READY,
            EngineState.KILLING,
            EngineState.STOPPING,
        )

    def deadline(self) -> float | None:
        """When a Tick is wanted at the latest; None: never."""
        return self._wake_at

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event at monotonic time `now` (s); effects are to be done in order."""
        if isinstance(event, Stop):
            return self._stop(now)
        if isinstance(event, Exited):
            return self._exited(event, now)
        if isinstance(event, Tick):
            return self._tick(now)
        if isinstance(event, Start) and self.state is EngineState.IDLE:
            return [Report(EngineState.STARTING), *self._spawn(now)]
        if isinstance(event, BecameReady) and self.state is EngineState.STARTING:
            self.state, self._wake_at = EngineState.READY, None
            self._num_failed_starts = 0
            return [Report(EngineState.READY)]
        if isinstance(event, Unresponsive) and self.state in (
            EngineState.STARTING,
            EngineState.READY,
        ):
            return self._kill(event.why)
        return []

    def check_integrity(self) -> None:
        """Raise RuntimeError when the state contradicts itself."""
        timed = {EngineState.STARTING, EngineState.BACKING_OFF, EngineState.STOPPING}
        if (self._wake_at is not None) != (self.state in timed):
            raise RuntimeError(f"deadline {self._wake_at} in state {self.state}")
        if bool(self.failure) != (self.state is EngineState.FAILED):
            raise RuntimeError(f"failure {self.failure!r} in state {self.state}")
        if (
            not self._patient
            and self.state is EngineState.BACKING_OFF
            and (
                len(self._crashes) >= MAX_CRASHES_IN_WINDOW
                or self._num_failed_starts >= MAX_FAILED_STARTS
            )
        ):
            raise RuntimeError("restarting an engine that should be given up")

    def _spawn(self, now: float) -> list[Effect]:
        self.state, self._wake_at = EngineState.STARTING, now + READY_WITHIN_S
        return [Spawn()]

    def _kill(self, why: str) -> list[Effect]:
        self._num_failed_starts += self.state is EngineState.STARTING
        self.state, self._wake_at, self._kill_reason = EngineState.KILLING, None, why
        return [FailRunning(why), Kill()]

    def _tick(self, now: float) -> list[Effect]:
        if self._wake_at is None or now < self._wake_at:
            return []
        if self.state is EngineState.BACKING_OFF:
            self.num_restarts += 1
            return self._spawn(now)
        if self.state is EngineState.STARTING and self._patient:
            self._wake_at = now + READY_WITHIN_S
            return []
        if self.state is EngineState.STARTING:
            return self._kill(f"not ready within {READY_WITHIN_S:g} s")
        self._wake_at = now + STOP_WITHIN_S  # STOPPING, and SIGTERM did not do
        return [Kill()]

    def _exited(self, event: Exited, now: float) -> list[Effect]:
        if self.state is EngineState.STOPPING:
            self.state, self._wake_at = EngineState.STOPPED, None
            return []
        if not self.has_child:
            return []
        reason = self._kill_reason or event.reason
        self._kill_reason = ""
        self._num_failed_starts += self.state is EngineState.STARTING
        self._crashes.append(now)
        while self._crashes[0] <= now - CRASH_WINDOW_S:
            self._crashes.popleft()
        effects: list[Effect] = [FailRunning(f"the engine ended: {reason}")]
        given_up = "" if self._patient else self._why_to_give_up()
        if event.hopeless and not self._patient:
            given_up = "cannot be served"
        if given_up:
            self.state, self._wake_at = EngineState.FAILED, None
            self.failure = f"{given_up}; last: {reason}"
            return [*effects, Report(EngineState.FAILED, self.failure)]
        delay_s = FIRST_RESTART_S * 2.0 ** (len(self._crashes) - 1)
        self.state = EngineState.BACKING_OFF
        self._wake_at = now + min(delay_s, MAX_RESTART_S)
        return [*effects, Report(EngineState.BACKING_OFF)]

    def _why_to_give_up(self) -> str:
        if self._num_failed_starts >= MAX_FAILED_STARTS:
            return f"did not start in {self._num_failed_starts} tries"
        if len(self._crashes) >= MAX_CRASHES_IN_WINDOW:
            return f"crashed {len(self._crashes)} times within {CRASH_WINDOW_S:g} s"
        return ""

    def _stop(self, now: float) -> list[Effect]:
        if self.state in (EngineState.STOPPING, EngineState.STOPPED):
            return []
        had_child = self.has_child
        self.failure = ""
        if not had_child:
            self.state, self._wake_at = EngineState.STOPPED, None
            return []
        self.state, self._wake_at = EngineState.STOPPING, now + STOP_WITHIN_S
        return [FailRunning("the engine is being stopped"), Terminate()]
