"""One model on one device, and what is known of how it serves."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.fleet.health.bounds import duration_text
from orchestrator.fleet.health.outliers import Outcomes
from orchestrator.fleet.view import DeviceId


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A lane accepted work and is silent; times in monotonic ms.

    `lost_at_ms`: what could not move by then is given up.
    """

    at_ms: float
    silent_since_ms: float
    expected_ms: float
    lost_at_ms: float

    def text(self, now_ms: float) -> str:
        """The condition and its reason, to be read."""
        silent_ms = max(0.0, now_ms - self.silent_since_ms)
        return (
            f"suspect: no token for {duration_text(silent_ms)},"
            f" expected {duration_text(self.expected_ms)}"
        )


@dataclass(frozen=True, slots=True)
class Ejection:
    """A lane that fails or is slow gets nothing until `until_ms`."""

    at_ms: float
    until_ms: float
    reason: str

    @property
    def text(self) -> str:
        """The condition and its reason, to be read."""
        return f"ejected for {duration_text(self.until_ms - self.at_ms)}: {self.reason}"


@dataclass(slots=True, eq=False)
class Lane:
    """One model on one device.

    `last_progress_ms` is written with every token, by whoever relays them, and read when
    lanes are judged; all else is written by the core only.
    """

    device_id: DeviceId
    model: str
    outcomes: Outcomes
    last_progress_ms: float = 0.0
    suspicion: Suspicion | None = None
    ejection: Ejection | None = None
    # Ejections not yet forgiven, and when the last one ended.
    strikes: int = 0
    returned_ms: float = 0.0

    @property
    def proven(self) -> bool:
        """Whether it ever finished a request."""
        return self.outcomes.num_finished > 0

    @property
    def fit(self) -> bool:
        """Whether it may take new requests."""
        return self.suspicion is None and self.ejection is None

    def condition(self, now_ms: float) -> str:
        """Why it is not fit; empty when it is."""
        if self.suspicion is not None:
            return self.suspicion.text(now_ms)
        return "" if self.ejection is None else self.ejection.text


@dataclass(frozen=True, slots=True)
class Work:
    """What a lane owes: a token within `bound_ms` of silence, counted from `since_ms` at the
    earliest; `expected_ms` is the prediction behind the bound."""

    lane: Lane
    since_ms: float
    bound_ms: float
    expected_ms: float

    @property
    def silent_since_ms(self) -> float:
        """When the silence began."""
        return max(self.lane.last_progress_ms, self.since_ms)

    @property
    def due_ms(self) -> float:
        """When the silence becomes suspicious."""
        return self.silent_since_ms + self.bound_ms


@dataclass(frozen=True, slots=True)
class Judgement:
    """What changed: lanes whose condition is another one now, and the brake's text.

    `brake` None: unchanged; empty: released.
    """

    changed: tuple[Lane, ...] = field(default_factory=tuple)
    brake: str | None = None
