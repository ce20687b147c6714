"""A waiting request: who waits, for what, how urgently, until when."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from orchestrator.request import RouteRequest, SloMiss

# A level of priority counts like this much waiting: priority 10 goes before requests of
# priority 0 that have waited up to ten seconds longer, and never before older ones.
MS_PER_PRIORITY = 1_000.0
# Without a stated TTFT a request is due after this and its own prefill on a slow device
# (500 tokens/s), so that a long prompt does not hold up short ones that came a little later.
BASE_SLACK_MS = 1_000.0
SLACK_MS_PER_TOKEN = 2.0
# Nobody is due later than this, however relaxed the objective or long the prompt: it
# bounds how long newer requests of a tenant may go before an older one.
MAX_SLACK_MS = 10_000.0


@dataclass(frozen=True, slots=True)
class Lane:
    """Requests that the same devices can take."""

    model: str
    device: str = ""
    device_class: str = ""
    # Devices that failed the request already.
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Entry:
    """One waiting request; times in monotonic ms.

    `cost_tokens`: what it is expected to cost its tenant's share. `urgency_ms`: less is
    more urgent, within a tenant. `latest_first_token_ms`: after it the first token is
    worth nothing (inf: never). `wants_refusal`: the client asked to be refused rather
    than served late, which only changes how a refusal is told.
    """

    request_id: str
    lane: Lane
    tenant: str
    weight: float
    cost_tokens: float
    prompt_bytes: int
    arrived_ms: float
    urgency_ms: float
    latest_first_token_ms: float
    priority: int = 0
    wants_refusal: bool = False

    @property
    def yields_until_ms(self) -> float:
        """Until then a request of negative priority lets all others go first."""
        return self.arrived_ms - min(0, self.priority) * MS_PER_PRIORITY


@dataclass(frozen=True, slots=True)
class Size:
    """What a request is expected to cost, in tokens."""

    prompt_tokens: int
    completion_tokens: float


def entry_of(request: RouteRequest, size: Size, arrived_ms: float, now_unix_ms: float) -> Entry:
    """The request as the queue orders it; `now_unix_ms` is the Unix time at `arrived_ms`."""
    slack_ms = BASE_SLACK_MS + SLACK_MS_PER_TOKEN * size.prompt_tokens
    latest_ms = math.inf
    if request.slo.ttft_ms is not None:
        slack_ms = request.slo.ttft_ms
        if request.on_slo_miss is not SloMiss.BEST_EFFORT:
            latest_ms = arrived_ms + request.slo.ttft_ms
    if request.deadline_unix_ms:
        until_deadline_ms = request.deadline_unix_ms - now_unix_ms
        slack_ms = min(slack_ms, until_deadline_ms)
        latest_ms = min(latest_ms, arrived_ms + until_deadline_ms)
    due_ms = arrived_ms + min(MAX_SLACK_MS, max(0.0, slack_ms))
    return Entry(
        request_id=request.request_id,
        lane=Lane(request.model, request.device, request.device_class),
        tenant=request.tenant,
        weight=request.tenant_weight,
        cost_tokens=size.prompt_tokens + size.completion_tokens,
        prompt_bytes=request.prompt_bytes,
        arrived_ms=arrived_ms,
        urgency_ms=due_ms - request.priority * MS_PER_PRIORITY,
        latest_first_token_ms=latest_ms,
        priority=request.priority,
        wants_refusal=request.on_slo_miss is SloMiss.REFUSE,
    )


def rest_of(request: RouteRequest, waited_ms: float) -> RouteRequest:
    """The request of who waited: of its TTFT objective only the rest is left."""
    if request.slo.ttft_ms is None or request.on_slo_miss is SloMiss.BEST_EFFORT:
        return request
    left_ms = max(0.0, request.slo.ttft_ms - waited_ms)
    return replace(request, slo=replace(request.slo, ttft_ms=left_ms))
