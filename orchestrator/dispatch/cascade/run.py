"""What one request's cascade is made of, before it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.dispatch.cascade.legs import Leg
from orchestrator.dispatch.cascade.policy import AUTO, CascadePolicy, Route, Target
from shoal.errors import Reason, ShoalError
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


def within_vocabulary(policy: CascadePolicy, route: Route, request: pb.GenerateRequest) -> Route:
    """The route of this request: one with token ids is the edge's alone, which are other words to
    another model.

    Raises INVALID_ARGUMENT when the policy names no edge model that they could be meant for.
    """
    biased = bool(request.sampling.logit_bias)
    if request.WhichOneof("prompt") != "tokens" and not biased:
        return route
    named = policy.edge or ("" if policy.name == AUTO else policy.name)
    if route.edge and route.edge == named:
        return Route(route.edge, None)
    raise ShoalError(
        Reason.INVALID_ARGUMENT if not named else Reason.NO_DEVICE,
        f"Token ids belong to one model's vocabulary; '{policy.name}' names no model for them."
        if not named
        else f"Token ids are for '{named}' alone, and no device is ready with it.",
        param="logit_bias" if biased else "prompt",
    )
