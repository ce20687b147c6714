"""What the router answers: a ranking, and the values that made it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import overload

from orchestrator.fleet.view import DeviceClass, DeviceId, DeviceView
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
    # Leading tokens that the device is likely to hold already.
    cached_tokens: int = 0


class RejectionKind(StrEnum):
    """Why a candidate was not chosen; stable names for metrics and tests."""

    STATE = "state"
    MODEL_ABSENT = "model_absent"
    MODEL_NOT_READY = "model_not_ready"
    MODEL_LOADING = "model_loading"
    CLASS_HINT = "class_hint"
    DEVICE_HINT = "device_hint"
    EXCLUDED = "excluded"
    UNWELL = "unwell"
    FULL = "full"
    SLO_TTFT = "slo_ttft"
    SLO_TPOT = "slo_tpot"
    CLASS_BUSY = "class_busy"
    CLASS_ORDER = "class_order"
    SCORE = "score"
    LOAD = "load"
    SPREAD = "spread"


# Not frozen: many are made for each decision, and a frozen one takes three times as long.
@dataclass(slots=True)
class Rejection:
    """A reason with its figures; the sentence is rendered only when somebody reads it."""

    kind: RejectionKind
    template: str
    figures: tuple[object, ...] = ()

    def __str__(self) -> str:
        """One readable sentence."""
        return self.template.format(*self.figures)


# A device that could not take the request, and why.
RuledOut = tuple[DeviceView, Rejection]


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


class LazyCandidates(Sequence[Candidate]):
    """Candidates that are worded when somebody looks, from the values that decided.

    The first, which the hub needs at once, is made without the others.
    """

    __slots__ = ("_all", "_explain", "_first")

    def __init__(self, first: Candidate | None, explain: Callable[[], tuple[Candidate, ...]]):
        self._first = first
        self._explain = explain
        self._all: tuple[Candidate, ...] | None = None

    def _tuple(self) -> tuple[Candidate, ...]:
        if self._all is None:
            self._all = self._explain()
            # What it was made from, whole devices among it, is not needed any more.
            self._explain = tuple
        return self._all

    @overload
    def __getitem__(self, index: int) -> Candidate: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Candidate, ...]: ...
    def __getitem__(self, index: int | slice) -> Candidate | tuple[Candidate, ...]:
        if index == 0 and self._first is not None:
            return self._first
        return self._tuple()[index]

    def __len__(self) -> int:
        return len(self._tuple())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._tuple() == tuple(other)

    def __hash__(self) -> int:
        return hash(self._tuple())


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
    candidates: Sequence[Candidate]
    reason: str
    failure: ShoalError | None
    decided_unix_ms: int
    num_unlisted: int = 0
    # How far the request may travel; empty: not said.
    privacy: str = ""

    @property
    def chosen(self) -> Candidate | None:
        """The candidate ranked first."""
        if not self.ranked:
            return None
        return next(c for c in self.candidates if c.device_id == self.ranked[0])

    @property
    def foreseen_ttft_ms(self) -> float:
        """Predicted TTFT of the chosen device, else that of the refusal; 0: neither is known."""
        if (chosen := self.chosen) is not None and chosen.prediction is not None:
            return chosen.prediction.ttft_ms
        if self.failure is not None and self.failure.foreseen is not None:
            return self.failure.foreseen.ttft_ms
        return 0.0
