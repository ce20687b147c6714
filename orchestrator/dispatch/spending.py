"""Budgets of the cloud: set aside before a request goes out, settled when it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import structlog

from orchestrator.dispatch.counting import reserved_prompt_tokens
from orchestrator.dispatch.endpoint import CloudConfig
from orchestrator.dispatch.outbound import OutboundPass
from orchestrator.dispatch.prices import Price, dearest_nanos
from orchestrator.fleet.registry_redis import StateError
from orchestrator.identity.tenants_redis import BudgetRefusal, Reservation
from shoal.errors import Reason, ShoalError
from shoal.openai.tier_use import TierUse
from shoal.v1 import inference_pb2 as pb

_log = structlog.get_logger(__name__)

# A state store that answers at all answers in milliseconds.
_LEDGER_TIMEOUT_S = 2.0


class Ledger(Protocol):
    """Where spending is counted (`orchestrator.identity`'s TenantStore)."""

    async def reserve(
        self, tenant: str, tokens: int, nanos: int | None
    ) -> Reservation | BudgetRefusal:
        """Set aside or refuse, atomically; raises StateError."""
        ...

    async def settle(self, reserved: Reservation, tokens: int, nanos: int | None) -> None:
        """Correct to what was spent; raises StateError."""
        ...


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one request may use; `max_tokens` None: its answer has no limit."""

    reservation: Reservation
    max_tokens: int | None


class Spending:
    """Reserves and settles; closed when the ledger cannot be reached."""

    def __init__(self, ledger: Ledger, config: CloudConfig) -> None:
        self._ledger = ledger
        self._default_max_tokens = config.default_max_tokens

    async def reserve(self, outbound: OutboundPass, prices: Sequence[Price | None]) -> Allowance:
        """Set aside what the request can cost at the dearest of `prices`; None: it states none.

        Raises BUDGET_EXCEEDED (402), or NO_DEVICE (503) when it cannot be known.
        """
        request = outbound.request
        max_tokens = self._max_tokens(request, has_budget=outbound.policy.budgets.any)
        prompt_tokens = reserved_prompt_tokens(request)
        completion_tokens = max_tokens or self._default_max_tokens
        nanos = dearest_nanos(prices, prompt_tokens, completion_tokens)
        try:
            async with asyncio.timeout(_LEDGER_TIMEOUT_S):
                reserved = await self._ledger.reserve(
                    request.tenant, prompt_tokens + completion_tokens, nanos
                )
        except (StateError, TimeoutError) as error:
            _log.warning("budget_unreadable", cause=type(error).__name__)
            raise ShoalError(
                Reason.NO_DEVICE,
                "The tenant's budget cannot be read just now, so nothing is sent to the cloud. "
                "Try again soon.",
                retry_after_ms=1_000,
            ) from error
        if isinstance(reserved, BudgetRefusal):
            raise _refused(request.tenant, reserved, priced=nanos is not None)
        return Allowance(reserved, max_tokens)

    async def settle(self, allowance: Allowance, use: TierUse) -> None:
        """Count what was used; when that fails, what was reserved stays counted."""
        tokens = use.prompt_tokens + use.completion_tokens
        try:
            async with asyncio.timeout(_LEDGER_TIMEOUT_S):
                await self._ledger.settle(allowance.reservation, tokens, use.cost_nanos)
        except (StateError, TimeoutError) as error:
            _log.warning("spending_not_settled", cause=type(error).__name__, tokens=tokens)

    def _max_tokens(self, request: pb.GenerateRequest, *, has_budget: bool) -> int | None:
        if request.HasField("max_tokens"):
            return request.max_tokens
        # Without a limit there is nothing that a reservation could promise.
        return self._default_max_tokens if has_budget else None


def _refused(tenant: str, refused: BudgetRefusal, *, priced: bool) -> ShoalError:
    budget = refused.budget
    begins = datetime.fromtimestamp(refused.ends_unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if not priced and budget.startswith("money"):
        return ShoalError(
            Reason.BUDGET_EXCEEDED,
            f"The tenant '{tenant}' has the budget '{budget}', and an endpoint or node of this "
            "model states no price, so nothing is sent there. An admin adds the price to the "
            "cloud's configuration.",
        )
    return ShoalError(
        Reason.BUDGET_EXCEEDED,
        f"The budget '{budget}' of the tenant '{tenant}' does not cover this request. It begins "
        f"anew at {begins}. Ask for fewer 'max_tokens', or have an admin raise it.",
    )
