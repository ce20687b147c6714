"""Becoming a member of a fleet, and staying one: enrolment and renewal."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import structlog

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


@dataclass(frozen=True, slots=True)
class _Fleet:
    """What the gateway says in public; nothing in it is trusted before the pin matched."""

    ca_pem: bytes
    enrol_address: str


async def enrol(request: JoinRequest, store: IdentityStore) -> Identity:
    """Join the fleet and save the identity.

    The token leaves this device only after the fleet's CA matched the token's
    pin, and only over TLS to a server that this CA vouches for.
    Raises AgentError with a distinct exit code for each way to fail.
    """
    give_up_at = asyncio.get_running_loop().time() + request.patience_s
    fleet = await _ask_gateway(request, give_up_at)
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
    )
    try:
        check_certificate(identity)
    except ValueError as error:
        raise AgentError(
            ExitCode.ENROLMENT_REFUSED, f"the hub's answer to the enrolment is unusable: {error}"
        ) from error
    store.save(identity)
    return identity


async def renew(identity: Identity, store: IdentityStore) -> Identity:
    """Exchange the certificate for a fresh one with the same key, and save it.

    Raises grpc.aio.AioRpcError when no hub granted it and ValueError when the
    answer is unusable; the old certificate stays in use then.
    """
    message = pb.RenewRequest(csr_pem=make_csr(identity.key_pem, identity.name))
    async with link_channel(identity.hub_addresses[0], identity) as channel:
        stub = rpc.RenewalStub(channel)  # type: ignore[no-untyped-call]
        reply = await stub.Renew(message, timeout=_CALL_TIMEOUT_S)
    renewed = dataclasses.replace(identity, certificate_pem=reply.certificate_pem.encode())
    check_certificate(renewed)
    store.save_certificate(renewed)
    return renewed


async def _ask_gateway(request: JoinRequest, give_up_at: float) -> _Fleet:
    import httpx  # only a device that joins needs an HTTP client

    url = f"{request.url.rstrip('/')}/shoal/v1/join"
    loop = asyncio.get_running_loop()
    async with httpx.AsyncClient(timeout=10.0, trust_env=False) as client:
        while True:
            try:
                response = await client.get(url)
                if response.status_code < 500:
                    break
                why = f"HTTP {response.status_code}"
            except httpx.InvalidURL as error:
                raise AgentError(ExitCode.USAGE, f"--join {request.url}: {error}") from error
            except httpx.HTTPError as error:
                why = str(error) or type(error).__name__
            if loop.time() >= give_up_at:
                raise AgentError(
                    ExitCode.UNREACHABLE,
                    f"no gateway answers at {request.url} ({why}); check --join and the network",
                )
            await asyncio.sleep(_RETRY_S)
    if response.status_code != httpx.codes.OK:
        raise AgentError(
            ExitCode.UNREACHABLE,
            f"{url} answered HTTP {response.status_code}: this is not a shoal gateway",
        )
    return _read_fleet(response, request)


def _read_fleet(response: Any, request: JoinRequest) -> _Fleet:
    try:
        body = response.json()
        fleet = _Fleet(str(body["ca_pem"]).encode(), str(body["enrol_address"]))
        authority = ca_der(fleet.ca_pem)
        versions = (int(body["protocol"]["min"]), int(body["protocol"]["max"]))
    except (ValueError, KeyError, TypeError) as error:
        raise AgentError(
            ExitCode.UNREACHABLE,
            f"{request.url} does not answer as a shoal gateway does; check --join",
        ) from error
    request.token.check_ca(authority)
    if agree_on_protocol(*versions) is None:
        raise AgentError(
            ExitCode.PROTOCOL,
            f"the fleet speaks protocol {versions[0]} to {versions[1]}, this agent "
            f"{MIN_PROTOCOL_VERSION} to {PROTOCOL_VERSION}; update the older one",
        )
    return fleet


async def _call_enrol(fleet: _Fleet, message: pb.EnrolRequest, give_up_at: float) -> pb.EnrolReply:
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
