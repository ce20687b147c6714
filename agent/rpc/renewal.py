"""Renews the certificate in good time, for as long as the agent runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import grpc
import grpc.aio
import structlog

from agent.rpc.enrol import renew
from agent.rpc.identity import Identity, IdentityStore
from agent.rpc.tls import describe
from agent.session.errors import AgentError, ExitCode

log = structlog.get_logger()

_LONGEST_PAUSE_S = 3600.0
_SHORTEST_PAUSE_S = 1.0
# So many tries are left between one that failed and the end of the certificate.
_TRIES = 20


async def keep_certificate_fresh(
    identity: Identity, store: IdentityStore, on_renewed: Callable[[Identity], None]
) -> None:
    """Renew whenever less than a third of the certificate's life is left.

    A try that fails is repeated; AgentError once the certificate has expired.
    """
    while True:
        now = datetime.now(UTC)
        left_s = identity.seconds_left(now)
        check_not_expired(identity, now)
        if identity.wants_renewal(now):
            try:
                identity = await renew(identity, store)
            except (grpc.aio.AioRpcError, ValueError, OSError) as error:
                why = describe(error) if isinstance(error, grpc.aio.AioRpcError) else str(error)
                log.warning("certificate_not_renewed", why=why, seconds_left=round(left_s))
            else:
                log.info("certificate_renewed", device_id=identity.device_id)
                on_renewed(identity)
                left_s = identity.seconds_left(now)
        await asyncio.sleep(min(_LONGEST_PAUSE_S, max(_SHORTEST_PAUSE_S, left_s / _TRIES)))


def check_not_expired(identity: Identity, now: datetime) -> None:
    """AgentError when the certificate's time is over."""
    if identity.seconds_left(now) <= 0:
        raise AgentError(
            ExitCode.IDENTITY_UNUSABLE,
            "this device's certificate has expired; empty --home and join again with a fresh "
            "token (and check the device's clock)",
        )
