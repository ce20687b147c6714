"""A tenant's own limits, off unless its policy states them, and its requests' defaults."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from orchestrator.fleet.registry_redis import StateError
from orchestrator.identity.tenants import Defaults, TenantPolicy
from orchestrator.queueing.token_bucket import TokenBucket
from orchestrator.request import Objective, Privacy
from shoal.errors import Reason, ShoalError
from shoal.openai.outcome import Outcome
from shoal.v1 import inference_pb2 as pb

_log = structlog.get_logger(__name__)

# A changed limit applies within this time.
CACHE_S = 5.0
_MAX_TENANTS = 10_000
# Charged until the engine has counted: English has about four bytes a token, and who does
# not limit the output gets about as many tokens as a chat's answers usually have.
_BYTES_PER_TOKEN = 4
_USUAL_COMPLETION_TOKENS = 256
# Of who has no policy; its privacy is ruled elsewhere.
_UNLIMITED = TenantPolicy(Privacy.LOCAL_ONLY)
_OBJECTIVE = {
    Objective.LATENCY: pb.OBJECTIVE_LATENCY,
    Objective.EDP: pb.OBJECTIVE_EDP,
    Objective.ENERGY: pb.OBJECTIVE_ENERGY,
}


class Policies(Protocol):
    """Where tenants' policies are kept."""

    async def policy(self, tenant: str) -> TenantPolicy | None:
        """The tenant's policy; None: it has none. Raises redis.RedisError."""


@dataclass(slots=True)
class _Known:
    policy: TenantPolicy
    until_s: float
    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """What was drawn for one HTTP request: of each of its sequences, in tokens."""

    tenant: str
    weight: float
    defaults: Defaults
    tokens: tuple[int, ...] = ()

    def apply(self, message: pb.GenerateRequest) -> None:
        """Give the request the tenant's weight, and its wishes where it states none."""
        message.tenant_weight = self.weight
        objective, hedge_after = self.defaults.objective, self.defaults.hedge_after
        if objective is not None and message.hints.objective == pb.OBJECTIVE_UNSPECIFIED:
            message.hints.objective = _OBJECTIVE[objective]
        if hedge_after is not None and not message.hints.HasField("hedge_after"):
            message.hints.hedge_after = hedge_after


class RateLimits:
    """Admits by tenant. Each of several gateways enforces its share of a limit."""

    def __init__(
        self,
        policies: Policies,
        num_gateways: int = 1,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policies = policies
        self._share = 1.0 / num_gateways
        self._monotonic = monotonic
        self._known: dict[str, _Known] = {}

    async def admit(self, tenant: str, requests: Sequence[pb.GenerateRequest]) -> Grant:
        """Draw for the sequences of one request; raises RATE_LIMITED with a time to retry."""
        known = self._known.get(tenant)
        now_s = self._monotonic()
        if known is None or now_s >= known.until_s:
            known = await self._read(tenant, known, now_s)
        if known.requests is None and known.tokens is None:
            return Grant(tenant, known.policy.rates.weight, known.policy.defaults)
        tokens = tuple(_expected_tokens(request) for request in requests)
        for bucket, amount, what in (
            (known.requests, 1, "requests"),
            (known.tokens, sum(tokens), "tokens"),
        ):
            wait_s = 0.0 if bucket is None else bucket.wait_s(amount, now_s)
            if bucket is not None and wait_s > 0:
                raise _limited(what, bucket.per_minute / self._share, wait_s)
        if known.requests is not None:
            known.requests.draw(1)
        if known.tokens is not None:
            known.tokens.draw(sum(tokens))
        return Grant(tenant, known.policy.rates.weight, known.policy.defaults, tokens)

    def settle(self, grant: Grant, outcomes: Sequence[Outcome]) -> None:
        """Put what was used in the place of what was drawn.

        Of an answer that was not finished nobody counted the tokens: what was drawn stays,
        but for one that was never placed.
        """
        known = self._known.get(grant.tenant) if grant.tokens else None
        if known is None or known.tokens is None:
            return
        for drawn, outcome in zip(grant.tokens, outcomes, strict=True):
            if outcome.finished is not None:
                usage = outcome.finished.usage
                known.tokens.draw(usage.prompt_tokens + usage.completion_tokens - drawn)
            elif outcome.placed is None:
                known.tokens.draw(-drawn)

    async def _read(self, tenant: str, known: _Known | None, now_s: float) -> _Known:
        try:
            policy = await self._policies.policy(tenant)
        except StateError as error:
            # Keys cannot be checked either then: nobody gets far without limits.
            _log.warning("tenant_limits_unknown", cause=repr(error))
            policy = None if known is None else known.policy
        policy = policy or _UNLIMITED
        known = self._known.get(tenant) or known
        if known is None:
            if len(self._known) >= _MAX_TENANTS:
                self._known.clear()
            known = self._known[tenant] = _Known(policy, 0.0)
        rates = policy.rates
        known.policy, known.until_s = policy, now_s + CACHE_S
        known.requests = self._bucket(known.requests, rates.requests_per_minute, now_s)
        known.tokens = self._bucket(known.tokens, rates.tokens_per_minute, now_s)
        return known

    def _bucket(
        self, bucket: TokenBucket | None, per_minute: float | None, now_s: float
    ) -> TokenBucket | None:
        if per_minute is None:
            return None
        if bucket is None:
            return TokenBucket(per_minute * self._share, now_s)
        if bucket.per_minute != per_minute * self._share:
            bucket.change(per_minute * self._share, now_s)
        return bucket


def _expected_tokens(request: pb.GenerateRequest) -> int:
    has_limit = request.HasField("max_tokens")
    completion = request.max_tokens if has_limit else _USUAL_COMPLETION_TOKENS
    # The prompt is nearly all of the message.
    return int(request.ByteSize()) // _BYTES_PER_TOKEN + completion


def _limited(what: str, per_minute: float, wait_s: float) -> ShoalError:
    return ShoalError(
        Reason.RATE_LIMITED,
        f"This tenant's limit of {per_minute:g} {what} per minute is reached. Try again in"
        f" {math.ceil(wait_s)} s.",
        retry_after_ms=max(1, math.ceil(wait_s * 1_000)),
    )
