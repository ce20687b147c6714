"""Becoming a member of a fleet, and staying one: enrolment and renewal."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from dataclasses import dataclass
from datetime import UTC, datetime

import grpc
import grpc.aio
import structlog

from agent.kv.access import SharedAccess
from agent.rpc.gateway_page import FleetPage, ask_gateway
from agent.rpc.identity import (
    Identity,
    IdentityStore,
    ca_der,
    check_certificate,
    make_csr,
    make_key,
)
from agent.rpc.tls import describe, enrolment_channel, link_channel
from agent.session.errors import AgentError, ExitCode
from agent.session.join_token import JoinToken
from shoal.kv_sharing import SharePolicy
from shoal.v1 import enrolment_pb2 as pb
from shoal.v1 import enrolment_pb2_grpc as rpc
from shoal.wire import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION, agree_on_protocol

log = structlog.get_logger()

_CALL_TIMEOUT_S = 15.0
_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Where to join, with which token, under which name.

    `patience_s`: for how long an unreachable gateway or hub is tried again.
    """

    url: str
    token: JoinToken
    name: str
    patience_s: float = 20.0


async def enrol(request: JoinRequest, store: IdentityStore) -> Identity:
    """Join the fleet and save the identity.

    The token leaves this device only after the fleet's CA matched the token's
    pin, and only over TLS to a server that this CA vouches for.
    Raises AgentError with a distinct exit code for each way to fail.
    """
    give_up_at = asyncio.get_running_loop().time() + request.patience_s
    fleet = await ask_gateway(request.url, give_up_at)
    _check_fleet(fleet, request)
    key_pem = make_key()
    message = pb.EnrolRequest(
        token=request.token.text,
        csr_pem=make_csr(key_pem, request.name),
        name=request.name,
        min_protocol=MIN_PROTOCOL_VERSION,
        max_protocol=PROTOCOL_VERSION,
    )
    reply = await _call_enrol(fleet, message, give_up_at)
    identity = Identity(
        device_id=reply.device_id,
        name=request.name,
        hub_addresses=tuple(reply.hub_addresses),
        gateway_url=request.url,
        key_pem=key_pem,
        certificate_pem=reply.certificate_pem.encode(),
        ca_pem=fleet.ca_pem,
        shared_kv=_shared_access(reply),
    )
    try:
        check_certificate(identity)
    except ValueError as error:
        raise AgentError(
            ExitCode.ENROLMENT_REFUSED, f"the hub's answer to the enrolment is unusable: {error}"
        ) from error
    store.save(identity)
    return identity


async def renew(identity: Identity) -> Identity:
    """Exchange the certificate for a fresh one with the same key; saves nothing.

    Raises grpc.aio.AioRpcError when no hub granted it and ValueError when the
    answer is unusable; the old certificate stays in use then.
    """
    message = pb.RenewRequest(csr_pem=make_csr(identity.key_pem, identity.name))
    reply = await _call_renew(identity, message)
    renewed = dataclasses.replace(
        identity,
        certificate_pem=reply.certificate_pem.encode(),
        hub_addresses=tuple(reply.hub_addresses) or identity.hub_addresses,
        # A cache that is away for a moment is no reason to forget it.
        shared_kv=_shared_access(reply) or identity.shared_kv,
    )
    check_certificate(renewed)
    return renewed


def _shared_access(reply: pb.EnrolReply) -> SharedAccess | None:
    if not (reply.cache_url and reply.fleet_secret):
        return None
    return SharedAccess(
        reply.cache_url,
        reply.cache_user,
        reply.cache_password,
        reply.fleet_secret,
        _share_policy(reply.cache_share_policy),
        reply.cache_write_bytes_per_s,
    )


def _share_policy(told: str) -> SharePolicy:
    """An older hub tells none; of a newer one's, nothing is shared."""
    try:
        return SharePolicy(told or "always")
    except ValueError:
        log.warning("share_policy_unknown", told=told[:40])
        return SharePolicy.NEVER


async def _call_renew(identity: Identity, message: pb.RenewRequest) -> pb.EnrolReply:
    """Ask the hubs in turn; the last one's error is raised."""
    for address in identity.hub_addresses:
        try:
            async with link_channel(address, identity) as channel:
                stub = rpc.RenewalStub(channel)  # type: ignore[no-untyped-call]
                reply: pb.EnrolReply = await stub.Renew(message, timeout=_CALL_TIMEOUT_S)
                return reply
        except grpc.aio.AioRpcError:
            if address == identity.hub_addresses[-1]:
                raise
    raise ValueError("no hub address")


def _check_fleet(fleet: FleetPage, request: JoinRequest) -> None:
    request.token.check_ca(ca_der(fleet.ca_pem))
    low, high = fleet.protocol
    if agree_on_protocol(low, high) is None:
        raise AgentError(
            ExitCode.PROTOCOL,
            f"the fleet speaks protocol {low} to {high}, this agent {MIN_PROTOCOL_VERSION} to "
            f"{PROTOCOL_VERSION}; update the older one",
        )


async def _call_enrol(
    fleet: FleetPage, message: pb.EnrolRequest, give_up_at: float
) -> pb.EnrolReply:
    loop = asyncio.get_running_loop()
    while True:
        try:
            async with enrolment_channel(fleet.enrol_address, fleet.ca_pem) as channel:
                stub = rpc.EnrolmentStub(channel)  # type: ignore[no-untyped-call]
                reply: pb.EnrolReply = await stub.Enrol(message, timeout=_CALL_TIMEOUT_S)
                return reply
        except grpc.aio.AioRpcError as error:
            failure = _enrolment_failure(error, fleet.enrol_address)
            if failure.exit_code is not ExitCode.UNREACHABLE or loop.time() >= give_up_at:
                raise failure from error
            log.info("enrolment_retried", why=describe(error))
        await asyncio.sleep(_RETRY_S)


def _enrolment_failure(error: grpc.aio.AioRpcError, address: str) -> AgentError:
    """The exit code follows the status and, where one status has several causes, the words."""
    code, details = error.code(), error.details() or ""
    words = details.lower()
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        if "not yet valid" in words or "certificate has expired" in words:
            # Tried again: boards without a clock of their own get the time from the network.
            return AgentError(
                ExitCode.UNREACHABLE,
                f"by this device's clock ({datetime.now(UTC):%Y-%m-%d %H:%M} UTC) the certificate "
                f"of {address} is not valid; set the clock (up to 5 minutes off are tolerated)",
            )
        if "ssl_error_ssl" in words or "certificate_verify_failed" in words:
            return AgentError(
                ExitCode.IMPOSTOR_CA,
                f"the server at {address} has no certificate of the fleet's authority; "
                "the token was not sent",
            )
        return AgentError(ExitCode.UNREACHABLE, f"no hub answers at {address} ({describe(error)})")
    if code is grpc.StatusCode.ALREADY_EXISTS:
        return AgentError(ExitCode.NAME_TAKEN, details)
    if "expired" in words:
        return AgentError(ExitCode.TOKEN_EXPIRED, details)
    if re.search(r"\bused\b", words):
        return AgentError(ExitCode.TOKEN_USED, details)
    if code in (
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.NOT_FOUND,
    ):
        return AgentError(ExitCode.TOKEN_FOREIGN, details)
    return AgentError(ExitCode.ENROLMENT_REFUSED, describe(error))
