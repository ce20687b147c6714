"""The one gate between a prompt and the world outside the fleet.

Whatever sends a prompt, or anything made from one, to a host that is not the fleet's
own takes an `OutboundPass` and sends what is in it. Passes are made here only, by
`OutboundGate.admit`, after request, tenant and detector were asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol, final

import structlog

from orchestrator.dispatch.detector import Screen
from orchestrator.dispatch.ruling import Ruling, closed, of_request, of_tenant, strictest
from orchestrator.fleet.registry_redis import StateError
from orchestrator.identity.tenants import TenantPolicy
from orchestrator.request import Privacy
from shoal.errors import Reason, ShoalError
from shoal.v1 import inference_pb2 as pb

_log = structlog.get_logger(__name__)

# A state store that answers at all answers in milliseconds.
_POLICY_TIMEOUT_S = 1.0
# How old a policy may be for requests that stay on the edge, where it decides over the
# sharing of KV blocks only. Nothing leaves on a remembered policy.
_REMEMBERED_S = 2.0
_MAX_REMEMBERED = 10_000
_ASKED = {
    pb.PRIVACY_UNSPECIFIED: None,
    pb.PRIVACY_ANY: Privacy.ANY,
    pb.PRIVACY_LOCAL_PREFERRED: Privacy.LOCAL_PREFERRED,
}
_WIRE = {
    Privacy.ANY: pb.PRIVACY_ANY,
    Privacy.LOCAL_PREFERRED: pb.PRIVACY_LOCAL_PREFERRED,
    Privacy.LOCAL_ONLY: pb.PRIVACY_LOCAL_ONLY,
}
_SEAL: Final = object()


class Policies(Protocol):
    """Where tenants' policies are kept."""

    async def policy(self, tenant: str) -> TenantPolicy | None:
        """None: the tenant has none; raises StateError."""
        ...


@final
class OutboundPass:
    """Leave for one request to go out, and the copy of it that may.

    Cannot be made outside this module, and holds what it allows: the pass of one
    request does not let another one out.
    """

    __slots__ = ("_policy", "_request", "_ruling")

    def __init__(
        self, seal: object, request: pb.GenerateRequest, ruling: Ruling, policy: TenantPolicy
    ) -> None:
        if seal is not _SEAL:
            raise TypeError("an OutboundPass comes from OutboundGate.admit only")
        self._request = pb.GenerateRequest()
        self._request.CopyFrom(request)
        self._ruling = ruling
        self._policy = policy

    @property
    def request(self) -> pb.GenerateRequest:
        """The copy that may go out."""
        return self._request

    @property
    def ruling(self) -> Ruling:
        """Why it may."""
        return self._ruling

    @property
    def own_only(self) -> bool:
        """It must stay local: it may go to endpoints only that count as the fleet's edge."""
        return not self._ruling.may_leave

    @property
    def policy(self) -> TenantPolicy:
        """The tenant's policy as it was read for this pass."""
        return self._policy

    def __init_subclass__(cls) -> None:
        raise TypeError("OutboundPass has no subclasses")


def checked(outbound: OutboundPass, *, own: bool = False) -> pb.GenerateRequest:
    """The request that may go out; for the first line of whatever sends it.

    `own`: where it is sent counts as the fleet's edge, by its owner's configuration.
    """
    if type(outbound) is not OutboundPass:
        raise TypeError("sending needs an OutboundPass")
    if outbound.own_only and not own:
        raise TypeError("this OutboundPass is for the fleet's own nodes only")
    return outbound.request


class OutboundGate:
    """Decides how far each request may travel, closed when in doubt."""

    def __init__(
        self,
        policies: Policies,
        screen: Screen,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policies = policies
        self._screen = screen
        self._monotonic = monotonic
        self._remembered: dict[str, tuple[float, TenantPolicy | None]] = {}

    async def rule(self, request: pb.GenerateRequest, *, fresh: bool = False) -> Ruling:
        """The request's level, for planning; also written into its hints, for every hop below.

        `fresh`: by the policy as it is now, not as it was a moment ago.
        Never raises for want of knowledge: what cannot be known stays local.
        """
        ruling, _ = await self._rule(request, remembered=not fresh)
        request.hints.privacy = _WIRE[ruling.level]
        return ruling

    async def admit(self, request: pb.GenerateRequest, *, own: bool = False) -> OutboundPass:
        """The request's pass, by the policy as it is now.

        `own`: there are endpoints that count as the fleet's edge; what must stay local, beyond
        doubt, may go to those. Raises PERMISSION_DENIED, or NO_DEVICE (503) when asking again
        may help.
        """
        ruling, policy = await self._rule(request, remembered=False)
        if policy is None or not (ruling.may_leave or (own and not ruling.in_doubt)):
            raise refusal(ruling)
        return OutboundPass(_SEAL, request, ruling, policy)

    def close(self) -> None:
        """Judge no more."""
        self._screen.close()

    async def _rule(
        self, request: pb.GenerateRequest, *, remembered: bool
    ) -> tuple[Ruling, TenantPolicy | None]:
        asked = of_request(_ASKED.get(request.hints.privacy, Privacy.LOCAL_ONLY))
        try:
            policy = await self._policy(request.tenant, remembered=remembered)
        except (StateError, TimeoutError) as error:
            _log.warning("privacy_policy_unreadable", cause=type(error).__name__)
            of_policy = closed("The tenant's privacy policy cannot be read just now.")
            policy = None
        else:
            of_policy = of_tenant(request.tenant, policy.privacy if policy else None)
        known = strictest(asked, of_policy)
        if not known.may_leave:
            return known, policy
        return strictest(known, await self._screen.judge(request)), policy

    async def _policy(self, tenant: str, *, remembered: bool) -> TenantPolicy | None:
        if not tenant:
            return None
        now_s = self._monotonic()
        known = self._remembered.get(tenant)
        if remembered and known is not None and now_s < known[0]:
            return known[1]
        # Forgotten first: should the reading fail, the next one is not to find it.
        self._remembered.pop(tenant, None)
        async with asyncio.timeout(_POLICY_TIMEOUT_S):
            policy = await self._policies.policy(tenant)
        if len(self._remembered) >= _MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[tenant] = (now_s + _REMEMBERED_S, policy)
        return policy


def refusal(ruling: Ruling) -> ShoalError:
    """Why a request may not leave, as its client is told."""
    if ruling.in_doubt:
        return ShoalError(
            Reason.NO_DEVICE,
            f"The request stays in the fleet: {ruling.because} Try again soon.",
            retry_after_ms=1_000,
        )
    return ShoalError(
        Reason.PERMISSION_DENIED,
        f"The request may not leave the fleet: {ruling.because}",
        param="shoal.privacy",
    )
