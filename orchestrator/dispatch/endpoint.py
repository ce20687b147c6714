"""A cloud endpoint and the models it serves: values, defaults with their reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from orchestrator.dispatch.breaker import BreakerLimits
from orchestrator.dispatch.cascade.policy import CascadePolicy
from orchestrator.dispatch.prices import Price
from orchestrator.dispatch.speculative_models import DraftedModel
from shoal.hosted import HostedModel
from shoal.vllm_models import VllmModel


class Salt(StrEnum):
    """Ways to tell an endpoint the tenant's salt; a stranger's gets none."""

    NONE = "none"
    # Of a hosted model (`shoal.hosted`).
    HEADER = "header"
    # Of vLLM: the field `cache_salt` of the body.
    CACHE_SALT = "cache_salt"


@dataclass(frozen=True, slots=True)
class CloudModel:
    """A model that an endpoint serves; `upstream` is the endpoint's own name of it.

    `priority` and `weight` None: the endpoint's. `price` None: not stated, so tenants
    with a money budget are refused.
    """

    name: str
    upstream: str
    num_parameters: int
    context_tokens: int = 0
    price: Price | None = None
    priority: int | None = None
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that an endpoint may take; each is a failure of the endpoint when it is over."""

    # A handshake across the world takes under a second; three retransmissions fit.
    connect_s: float = 5.0
    # From the request to the first event of the answer: a long prompt takes a while.
    first_byte_s: float = 60.0
    # Between two events. Comments ("keep-alive") are none: else a stream that never
    # goes on would never end.
    chunk_s: float = 30.0
    # The whole answer; the request's own deadline ends it sooner.
    total_s: float = 600.0


@dataclass(frozen=True, slots=True)
class CloudEndpoint:
    """One OpenAI-compatible endpoint; `url` up to and including `/v1`.

    Lower `priority` is asked first; among equal ones each gets its `weight`'s share.
    `ca_file`: certificates to trust instead of the system's.
    """

    name: str
    url: str
    models: tuple[CloudModel, ...]
    key: str = field(default="", repr=False)
    priority: int = 0
    weight: float = 1.0
    timeouts: Timeouts = field(default_factory=Timeouts)
    breaker: BreakerLimits = field(default_factory=BreakerLimits)
    ca_file: Path | None = None
    max_connections: int = 256
    # Of the fleet's own: how it is told the tenant's salt, so that tenants share no cached KV.
    salt: Salt = Salt.NONE
    # The configuration says that it counts as the fleet's edge: local requests may go there.
    own: bool = False

    @property
    def takes_ignore_eos(self) -> bool:
        """Whether its server is one that the fleet runs: shoal's engine and vLLM know the field."""
        return self.salt is not Salt.NONE


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """How hard one request tries, over all endpoints of its model."""

    # Tries that reach an endpoint, the first included.
    max_tries: int = 4
    # Waiting for a Retry-After or a pause ends here, counted from the first try: a
    # client that is told to come back can do other things meanwhile.
    max_wait_s: float = 15.0
    first_pause_s: float = 0.25
    max_pause_s: float = 4.0


@dataclass(frozen=True, slots=True)
class DetectorSettings:
    """A detector of personal data; `kind` empty: none.

    `raises_to` is the level of a request in which it finds something.
    """

    kind: str = ""
    raises_to: str = "local_only"
    entities: tuple[str, ...] = ()
    # Presidio gives telephone numbers 0.4.
    min_score: float = 0.4
    # A text that is not judged in this time stays local.
    timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class CloudConfig:
    """All that a gateway is told of the cloud."""

    endpoints: tuple[CloudEndpoint, ...] = ()
    currency: str = "USD"
    retry: RetryLimits = field(default_factory=RetryLimits)
    detector: DetectorSettings = field(default_factory=DetectorSettings)
    # What an answer may have when its request gives no `max_tokens` and its tenant a budget.
    default_max_tokens: int = 4_096
    # Models that devices draft for a cloud node.
    drafted: tuple[DraftedModel, ...] = ()
    cascades: tuple[CascadePolicy, ...] = ()
    # Models that the fleet serves on cloud nodes of its own; their endpoints are among `endpoints`.
    hosted: tuple[HostedModel, ...] = ()
    vllm: tuple[VllmModel, ...] = ()
