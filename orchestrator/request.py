"""A request as the orchestrator's cores see it, free of HTTP and protobuf."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Privacy(StrEnum):
    """How far a prompt may travel."""

    ANY = "any"
    LOCAL_PREFERRED = "local_preferred"
    LOCAL_ONLY = "local_only"


class Objective(StrEnum):
    """What the router minimises among devices that meet the SLO."""

    LATENCY = "latency"
    EDP = "edp"
    ENERGY = "energy"


class SloMiss(StrEnum):
    """What becomes of a request whose objective no device is predicted to meet.

    UNSTATED: the best device serves it, but it does not wait past its TTFT for one that
    has room. BEST_EFFORT: it waits for that too. REFUSE: it is refused either way.
    """

    UNSTATED = "unstated"
    BEST_EFFORT = "best_effort"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency objective in ms; None: not stated."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What placement depends on.

    `prompt_bytes` is the UTF-8 size of the prompt: the gateway has no tokeniser,
    so the estimator learns tokens per byte for each model.
    `max_tokens` None means to the end of the context.
    """

    request_id: str
    tenant: str
    model: str
    prompt_bytes: int
    max_tokens: int | None = None
    slo: Slo = field(default_factory=Slo)
    privacy: Privacy = Privacy.ANY
    objective: Objective = Objective.LATENCY
    device_class: str = ""
    device: str = ""
    priority: int = 0
    deadline_unix_ms: int = 0
    # Prefix hashes over the prompt's text, coarse to fine, for affinity.
    prefix_hints: tuple[int, ...] = ()
    on_slo_miss: SloMiss = SloMiss.UNSTATED
    # The tenant's share against others' when requests have to wait.
    tenant_weight: float = 1.0
    # Whether it may wait in the hub for a device with room, or is better refused at once.
    may_wait: bool = True
    # Hedge after so many predicted TTFTs without a token; 0: never, None: as the hub is set.
    hedge_after: float | None = None
