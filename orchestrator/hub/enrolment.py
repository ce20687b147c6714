"""How a device becomes a member and stays one: the Enrolment and Renewal services.

Enrolment is served over TLS without client certificates, Renewal on the mutually
authenticated port. Whatever is missing, unknown or unreadable is denied.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
import structlog

from orchestrator.fleet.registry import DeviceEntry, NameTaken, Registry
from orchestrator.fleet.registry_redis import StateError
from orchestrator.fleet.view import DeviceId
from orchestrator.hub.roles import Role, require_role
from orchestrator.identity.authority import Authority, IssuedCertificate
from orchestrator.identity.cache_users_redis import CacheUsers
from orchestrator.identity.token_store_redis import TokenStore
from shoal.device_names import DEVICE_NAME_RULE, may_name_a_device
from shoal.errors import Reason, ShoalError, invalid
from shoal.v1 import enrolment_pb2 as pb
from shoal.v1 import enrolment_pb2_grpc as rpc
from shoal.wire import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION, agree_on_protocol

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EnrolmentParts:
    """What enrolment needs. `hub_addresses` is asked at each call: ports are known late."""

    authority: Authority
    tokens: TokenStore
    registry: Registry
    hub_addresses: Callable[[], Sequence[str]]
    unix_ms: Callable[[], int]
    cache_users: CacheUsers | None = None


class EnrolmentServicer(rpc.EnrolmentServicer, rpc.RenewalServicer):
    """Trades join tokens for certificates, and certificates for fresh ones."""

    def __init__(self, parts: EnrolmentParts) -> None:
        self._authority = parts.authority
        self._tokens = parts.tokens
        self._registry = parts.registry
        self._hub_addresses = parts.hub_addresses
        self._unix_ms = parts.unix_ms
        self._cache_users = parts.cache_users

    async def Enrol(
        self, request: pb.EnrolRequest, context: grpc.aio.ServicerContext
    ) -> pb.EnrolReply:
        """Admit a device; the token is used up only when it really becomes a member."""
        try:
            device_id, issued = await self._enrol(request)
        except NameTaken as error:
            log.info("enrolment_denied", why="name_taken", name=error.name, holder=error.holder)
            await context.abort(
                grpc.StatusCode.ALREADY_EXISTS,
                f"a device named {error.name!r} is in the fleet already: run"
                f" `shoal devices remove {error.name}` if it is this one reinstalled,"
                " or join under another name (--name)",
            )
        except ShoalError as error:
            log.info("enrolment_denied", why=error.param or error.reason.value)
            await context.abort(error.grpc_code, error.message)
        except StateError as error:
            await _abort_without_state(context, error)
        log.info("device_enrolled", device_id=device_id, name=request.name, serial=issued.serial)
        return await self._reply(device_id, issued)

    async def Renew(
        self, request: pb.RenewRequest, context: grpc.aio.ServicerContext
    ) -> pb.EnrolReply:
        """Give the calling device a fresh certificate under the same id."""
        device_id = DeviceId(await require_role(context, Role.DEVICE))
        try:
            issued = await self._renew(device_id, request.csr_pem)
        except ShoalError as error:
            log.info("renewal_denied", device_id=device_id, why=error.reason.value)
            await context.abort(error.grpc_code, error.message)
        except StateError as error:
            await _abort_without_state(context, error)
        log.info("certificate_renewed", device_id=device_id, serial=issued.serial)
        return await self._reply(device_id, issued)

    async def _enrol(self, request: pb.EnrolRequest) -> tuple[DeviceId, IssuedCertificate]:
        # Nothing about the fleet is told to a caller without a good token.
        await self._tokens.check(request.token)
        if agree_on_protocol(request.min_protocol, request.max_protocol) is None:
            raise invalid(
                "max_protocol",
                f"the fleet speaks protocol {MIN_PROTOCOL_VERSION} to {PROTOCOL_VERSION}, the agent"
                f" {request.min_protocol} to {request.max_protocol}: update the older of the two",
            )
        if not may_name_a_device(request.name):
            raise invalid("name", DEVICE_NAME_RULE)
        holder = await self._registry.find_by_name(request.name)
        if holder is not None:
            raise NameTaken(request.name, holder.device_id)
        device_id = DeviceId(uuid.uuid4().hex)
        issued = self._authority.issue_device(request.csr_pem, device_id)
        await self._tokens.consume(request.token, device_id)
        entry = DeviceEntry(
            device_id=device_id,
            name=request.name,
            cert_serial=issued.serial,
            enrolled_unix_ms=self._unix_ms(),
        )
        try:
            await self._registry.add(entry)
        except NameTaken:
            # Lost a race for the name alone: the token is still good for another.
            await self._tokens.release(request.token, device_id)
            raise
        return device_id, issued

    async def _renew(self, device_id: DeviceId, csr_pem: str) -> IssuedCertificate:
        entry = await self._registry.get(device_id)
        if entry is None or entry.revoked:
            raise ShoalError(
                Reason.PERMISSION_DENIED,
                f"device {device_id} was removed from the fleet; join again with a fresh token",
            )
        issued = self._authority.issue_device(csr_pem, device_id)
        await self._registry.record_certificate(device_id, issued.serial)
        return issued

    async def _reply(self, device_id: DeviceId, issued: IssuedCertificate) -> pb.EnrolReply:
        users = self._cache_users
        login = None if users is None else await users.grant(device_id)
        return pb.EnrolReply(
            device_id=device_id,
            certificate_pem=issued.pem,
            ca_pem=self._authority.ca_pem,
            hub_addresses=self._hub_addresses(),
            cache_url=login.url if login else "",
            cache_user=login.user if login else "",
            cache_password=login.password if login else "",
            fleet_secret=login.fleet_secret if login else b"",
            cache_share_policy=login.share_policy if login else "",
            cache_write_bytes_per_s=login.write_bytes_per_s if login else 0,
        )


async def _abort_without_state(context: grpc.aio.ServicerContext, error: StateError) -> None:
    """End the call as one to try again: whether it may succeed cannot be known now."""
    log.warning("state_unreachable", error=str(error))
    await context.abort(
        grpc.StatusCode.UNAVAILABLE, "the fleet's state store is unreachable; try again soon"
    )
