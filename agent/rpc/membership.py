"""Stays a member of the fleet: renews the certificate, finds hubs that moved."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime

import grpc
import grpc.aio
import structlog

from agent.rpc.enrol import renew
from agent.rpc.gateway_page import ask_gateway
from agent.rpc.identity import Identity, IdentityStore, ca_der
from agent.rpc.tls import describe
from agent.session.errors import AgentError, ExitCode

log = structlog.get_logger()

_LONGEST_PAUSE_S = 3600.0
_SHORTEST_PAUSE_S = 1.0
_EXPIRED_PAUSE_S = 60.0
_REFUSED_PAUSE_S = 600.0
# So many tries are left between one that failed and the end of the certificate.
_TRIES = 20


class Membership:
    """The identity in use and what keeps it current."""

    def __init__(
        self,
        identity: Identity,
        store: IdentityStore,
        join_url: str = "",
        *,
        outlives_certificate: bool = False,
    ) -> None:
        """`outlives_certificate`: the device has work without a hub, and goes on when expired."""
        self._outlives = outlives_certificate
        self.identity = identity
        self._store = store
        self._gateway_url = join_url or identity.gateway_url
        self._not_before_s = 0.0  # when to renew for the sake of the shared tier again

    async def keep_certificate_fresh(self) -> None:
        """Renew whenever less than a third of the certificate's life is left; never returns.

        A try that fails is repeated; AgentError once the certificate has expired, unless
        this device outlives it.
        """
        while True:
            now = datetime.now(UTC)
            try:
                check_not_expired(self.identity, now)
            except AgentError as error:
                if not self._outlives:
                    raise
                # A clock that was wrong may be set right: no reason to end for good either.
                log.error("certificate_expired", why=error.message)
                await asyncio.sleep(_EXPIRED_PAUSE_S)
                continue
            if self.identity.wants_renewal(now):
                await self._try_to_renew()
            left_s = self.identity.seconds_left(now)
            await asyncio.sleep(min(_LONGEST_PAUSE_S, max(_SHORTEST_PAUSE_S, left_s / _TRIES)))

    async def follow_cache(self, digest: bytes) -> None:
        """Renew when a hub would tell of the shared KV blocks what is not known here.

        `digest`: as its welcome has it; empty: nothing to tell. A failure is logged, and
        the next welcome is another occasion.
        """
        known = self.identity.shared_kv
        if digest and (known is None or known.digest != digest):
            log.info("shared_kv_changed")
            await self._try_to_renew()

    async def cache_refused(self) -> None:
        """Renew, since the shared tier refuses this device's user, which a renewal makes anew.

        Called at each heartbeat while that is so; only some calls do it.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s < self._not_before_s:
            return
        self._not_before_s = now_s + _REFUSED_PAUSE_S
        log.info("shared_kv_refused")
        await self._try_to_renew()

    async def look_up_hubs(self) -> None:
        """Ask the gateway where the hubs are and remember it; a failure is logged.

        Only addresses are taken from the answer: whoever listens there still has to
        show a certificate of the authority that this device joined under.
        """
        try:
            page = await ask_gateway(self._gateway_url, give_up_at=0.0)
        except AgentError as error:
            log.info("hubs_not_looked_up", why=error.message)
            return
        if ca_der(page.ca_pem) != ca_der(self.identity.ca_pem):
            log.warning("gateway_of_another_fleet", url=self._gateway_url)
            return
        if page.hub_addresses and page.hub_addresses != self.identity.hub_addresses:
            log.info("hubs_moved", hub_addresses=page.hub_addresses)
            self._adopt(
                dataclasses.replace(
                    self.identity,
                    hub_addresses=page.hub_addresses,
                    gateway_url=self._gateway_url,
                )
            )

    async def _try_to_renew(self) -> None:
        try:
            renewed = await renew(self.identity)
            self._adopt(renewed)
        except (grpc.aio.AioRpcError, ValueError, OSError) as error:
            why = describe(error) if isinstance(error, grpc.aio.AioRpcError) else str(error)
            log.warning("certificate_not_renewed", why=why)
        else:
            log.info("certificate_renewed", device_id=renewed.device_id)

    def _adopt(self, identity: Identity) -> None:
        self._store.save(identity)
        self.identity = identity


def check_not_expired(identity: Identity, now: datetime) -> None:
    """AgentError when the certificate's time is over."""
    if identity.seconds_left(now) <= 0:
        raise AgentError(
            ExitCode.IDENTITY_UNUSABLE,
            "this device's certificate has expired; empty --home and join again with a fresh "
            "token (and check the device's clock)",
        )
