"""Which model answers first, who may answer instead, and how the client gets it; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.request import Privacy
from orchestrator.routing.tree import tier_for
from shoal.errors import Reason, ShoalError

AUTO = "auto"
# `hold`: nothing is sent until the answer stands or the bound is reached. `restart`: the
# edge's text is sent at once, and an event says when it is void.
DELIVERIES = ("hold", "restart")


@dataclass(frozen=True, slots=True)
class CascadePolicy:
    """One cascade; `name` is the model that clients ask for.

    `edge` empty: for `auto` the largest model of the fleet below 7B, else `name` itself.
    `escalate_to` empty: the cloud's models that are larger, the smallest first, then larger
    models of the fleet.
    """

    name: str = AUTO
    edge: str = ""
    escalate_to: tuple[str, ...] = ()
    # Until it is calibrated. About a quarter of SmolLM2's answers score below it.
    threshold: float = 0.5
    delivery: str = "hold"
    # How long a client that streams waits at most for the verdict, by time and by tokens;
    # then what has come decides. An answer in one piece is judged whole.
    hold_s: float = 10.0
    hold_tokens: int = 256
    # How long the other model may take to its first word while the edge's answer is there.
    escalate_s: float = 30.0
    # Share of confident answers of which the cloud is asked as well.
    audit_share: float = 0.02
    # Share of requests that are never stopped early, so that calibration sees whole answers.
    explore_share: float = 0.1


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model and where it is to be had now."""

    name: str
    num_parameters: int
    on_edge: bool
    in_cloud: bool


@dataclass(frozen=True, slots=True)
class Target:
    """Who answers instead."""

    model: str
    tier: str


@dataclass(frozen=True, slots=True)
class Route:
    """A policy with today's models in it; `edge` empty: none is ready."""

    edge: str
    target: Target | None


def resolve(
    policy: CascadePolicy, models: Sequence[KnownModel], level: Privacy, *, pinned: bool = False
) -> Route:
    """Who answers, and who does instead, for a request of this privacy level.

    Only `any` goes on to the cloud: `local_preferred` lets a request out when the edge
    cannot serve it, and an answer in doubt is an answer. `pinned`: the
    request names a device or a class, which answers it, however unsure. Raises MODEL_NOT_FOUND when
    there is neither.
    """
    known = {each.name: each for each in models}
    edge = _edge(policy, models)
    names = policy.escalate_to or _larger(known.get(edge), models)
    target = None
    if not pinned:
        target = _target(names, known, edge, may_leave=level is Privacy.ANY)
    if not edge and target is None:
        raise ShoalError(
            Reason.MODEL_NOT_FOUND,
            f"No model that the cascade '{policy.name}' may use is present for this request. "
            "See GET /v1/models.",
            param="model",
        )
    return Route(edge, target)


def _edge(policy: CascadePolicy, models: Sequence[KnownModel]) -> str:
    wanted = policy.edge or ("" if policy.name == AUTO else policy.name)
    ready = [each for each in models if each.on_edge]
    if wanted:
        return wanted if any(each.name == wanted for each in ready) else ""
    small = [each for each in ready if tier_for(each.num_parameters) == "edge"]
    # With nobody behind it the smallest goes first, so that the others can go on from it.
    pick = max if any(each.in_cloud for each in models) else min
    best = pick(small, key=lambda each: (each.num_parameters, each.name), default=None)
    return best.name if best else ""


def _larger(edge: KnownModel | None, models: Sequence[KnownModel]) -> list[str]:
    least = edge.num_parameters if edge else 0
    ordered = sorted(models, key=lambda m: (not m.in_cloud, m.num_parameters, m.name))
    return [m.name for m in ordered if m.num_parameters > least]


def _target(
    names: Sequence[str], known: dict[str, KnownModel], edge: str, *, may_leave: bool
) -> Target | None:
    for name in names:
        model = known.get(name)
        if model is None:
            continue
        if model.on_edge and name != edge:
            return Target(name, "edge")
        if model.in_cloud and may_leave:
            return Target(name, "cloud")
    return None
