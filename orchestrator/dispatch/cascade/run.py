"""What one request's cascade is made of, before it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.dispatch.cascade.legs import Leg
from orchestrator.dispatch.cascade.policy import CascadePolicy, Target
from shoal.v1 import inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class Starts:
    """How the two who may answer are started; None: there is no such.

    `target` is told whether to be patient: whether there is no answer of the edge instead.
    `again`: the edge once more, when it was stopped early and nobody else answered.
    """

    edge: Callable[[], Leg] | None
    target: Callable[[bool], Leg] | None
    again: Callable[[], Leg] | None = None


@dataclass(frozen=True, slots=True)
class CascadeRun:
    """What decides over one request, made before it starts."""

    policy: CascadePolicy
    request: pb.GenerateRequest
    edge_model: str
    target: Target | None
    delivery: str
    # Seconds; None: the client does not stream, so the whole answer is judged.
    hold_s: float | None
    # Whether the answer stands whatever its confidence, so nothing need be held.
    shown_at_once: bool = False

    def told(self) -> dict[str, object]:
        """Who was to answer and how, for answers and records."""
        return {
            "edge_model": self.edge_model,
            "target_model": self.target.model if self.target else "",
            "target_tier": self.target.tier if self.target else "",
            "delivery": self.delivery,
        }

    @property
    def in_one_piece(self) -> bool:
        """Whether the client gets the answer when it is whole."""
        return self.delivery == "hold" and self.hold_s is None
