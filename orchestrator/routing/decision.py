"""What the router answers: a ranking, and the values that made it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.fleet.view import DeviceClass, DeviceId
from orchestrator.routing.tree import Tier
from shoal.errors import ShoalError


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a request would meet on one device; `joules` None: nothing to estimate from."""

    ttft_ms: float
    tpot_ms: float
    joules: float | None
    joules_estimated: bool
    prompt_tokens: int


class RejectionKind(StrEnum):
    """Why a candidate was not chosen; stable names for metrics and tests."""

    STATE = "state"
    MODEL_ABSENT = "model_absent"
    MODEL_NOT_READY = "model_not_ready"
    CLASS_HINT = "class_hint"
    DEVICE_HINT = "device_hint"
    EXCLUDED = "excluded"
    FULL = "full"
    SLO_TTFT = "slo_ttft"
    SLO_TPOT = "slo_tpot"
    CLASS_BUSY = "class_busy"
    CLASS_ORDER = "class_order"
    SCORE = "score"
    LOAD = "load"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A reason with its figures; the sentence is rendered only when somebody reads it."""

    kind: RejectionKind
    template: str
    figures: tuple[object, ...] = ()

    def __str__(self) -> str:
        """One readable sentence."""
        return self.template.format(*self.figures)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One device that was considered; `prediction` None: it could not take the request."""

    device_id: DeviceId
    device_name: str
    device_class: DeviceClass
    prediction: Prediction | None
    rejection: Rejection | None = None

    @property
    def rejected(self) -> str | None:
        """Why it lost, as one sentence; None for the chosen device."""
        return None if self.rejection is None else str(self.rejection)


@dataclass(frozen=True, slots=True)
class Decision:
    """One placement. `ranked` is best first; empty: none can serve, and `failure` says why.

    `tier` is the tree's: with "cloud", `ranked` still names the edge devices that
    serve the model, for dispatch to use when no cloud is configured.
    `num_unlisted` counts devices of a large fleet that serve the model and are not among
    `candidates`: not drawn, or too many to list.
    """

    request_id: str
    model: str
    tier: Tier
    class_order: tuple[DeviceClass, ...]
    ranked: tuple[DeviceId, ...]
    candidates: tuple[Candidate, ...]
    reason: str
    failure: ShoalError | None
    decided_unix_ms: int
    num_unlisted: int = 0

    @property
    def chosen(self) -> Candidate | None:
        """The candidate ranked first."""
        if not self.ranked:
            return None
        return next(c for c in self.candidates if c.device_id == self.ranked[0])
