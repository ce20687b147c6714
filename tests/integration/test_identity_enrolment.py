"""Enrolment and renewal over real TLS with a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis.asyncio import Redis

from orchestrator.fleet.registry import Registry
from orchestrator.fleet.registry_redis import RedisRegistry
from orchestrator.hub.enrolment import EnrolmentParts, EnrolmentServicer
from orchestrator.identity.authority import Authority
from orchestrator.identity.join_tokens import JoinToken
from orchestrator.identity.token_store_redis import TokenStore
from shoal.v1 import enrolment_pb2 as pb
from shoal.v1 import enrolment_pb2_grpc as rpc
from shoal.wire import HUB_TLS_NAME
from tests.harness.redis_server import running_redis

OPTIONS = [("grpc.ssl_target_name_override", HUB_TLS_NAME), ("grpc.enable_retries", 0)]
TIMEOUT_S = 20


@dataclass
class Fleet:
    authority: Authority
    tokens: TokenStore
    registry: Registry
    client: Redis
    enrol_address: str
    link_address: str

    async def enrol(self, token: str, name: str, key=None, **fields) -> pb.EnrolReply:
        message = pb.EnrolRequest(
            token=token, csr_pem=csr(key or new_key()), name=name, max_protocol=1, **fields
        )
        credentials = grpc.ssl_channel_credentials(self.authority.ca_pem.encode())
        async with grpc.aio.secure_channel(self.enrol_address, credentials, OPTIONS) as channel:
            return await rpc.EnrolmentStub(channel).Enrol(message, timeout=TIMEOUT_S)

    async def renew(self, key, certificate_pem: str, csr_pem: str = "") -> pb.EnrolReply:
        credentials = grpc.ssl_channel_credentials(
            self.authority.ca_pem.encode(), pem(key), certificate_pem.encode()
        )
        message = pb.RenewRequest(csr_pem=csr_pem or csr(key))
        async with grpc.aio.secure_channel(self.link_address, credentials, OPTIONS) as channel:
            return await rpc.RenewalStub(channel).Renew(message, timeout=TIMEOUT_S)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def pem(key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def csr(key) -> str:
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def name_in(certificate_pem: str) -> str:
    subject = x509.load_pem_x509_certificate(certificate_pem.encode()).subject
    return subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value


async def refused(awaitable) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    return caught.value


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture
async def fleet(redis_url: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with serving(redis_url, tmp_path) as fleet:
        await fleet.client.flushall()
        yield fleet


@asynccontextmanager
async def serving(redis_url: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    client = Redis.from_url(redis_url, decode_responses=True)
    authority = Authority.load_or_create(tmp_path / "ca")
    tokens = TokenStore(client, authority.ca_sha256)
    registry = RedisRegistry(client)
    addresses: list[str] = []
    servicer = EnrolmentServicer(
        EnrolmentParts(authority, tokens, registry, lambda: addresses, lambda: 5)
    )
    key_pem, certificate_pem = authority.issue_service("hub:h1", [HUB_TLS_NAME])
    pair = [(key_pem.encode(), certificate_pem.encode())]

    enrol_server, link_server = grpc.aio.server(), grpc.aio.server()
    rpc.add_EnrolmentServicer_to_server(servicer, enrol_server)
    rpc.add_RenewalServicer_to_server(servicer, link_server)
    enrol_port = enrol_server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(pair))
    link_port = link_server.add_secure_port(
        "127.0.0.1:0",
        grpc.ssl_server_credentials(pair, authority.ca_pem.encode(), require_client_auth=True),
    )
    addresses.append(f"127.0.0.1:{link_port}")
    await enrol_server.start()
    await link_server.start()
    yield Fleet(authority, tokens, registry, client, f"127.0.0.1:{enrol_port}", addresses[0])
    await enrol_server.stop(None)
    await link_server.stop(None)
    await client.aclose()


async def test_token_buys_a_certificate_that_the_link_port_accepts(fleet):
    key = new_key()
    reply = await fleet.enrol(await fleet.tokens.create(60), "pi", key)
    assert name_in(reply.certificate_pem) == f"device:{reply.device_id}"
    assert reply.ca_pem == fleet.authority.ca_pem
    assert list(reply.hub_addresses) == [fleet.link_address]
    entry = await fleet.registry.get(reply.device_id)
    assert (entry.name, entry.state, entry.revoked) == ("pi", "ENROLLED", False)

    renewed = await fleet.renew(key, reply.certificate_pem)
    assert renewed.device_id == reply.device_id
    assert name_in(renewed.certificate_pem) == f"device:{reply.device_id}"
    serial = x509.load_pem_x509_certificate(renewed.certificate_pem.encode()).serial_number
    assert (await fleet.registry.get(reply.device_id)).cert_serial == f"{serial:x}"


async def test_exactly_one_of_fifty_agents_wins_one_token(fleet):
    token = await fleet.tokens.create(60)
    results = await asyncio.gather(
        *(fleet.enrol(token, f"pi{n}") for n in range(50)), return_exceptions=True
    )
    won = [result for result in results if isinstance(result, pb.EnrolReply)]
    lost = [result for result in results if not isinstance(result, pb.EnrolReply)]
    assert len(won) == 1
    assert {error.code() for error in lost} == {grpc.StatusCode.UNAUTHENTICATED}
    assert all("used" in error.details() for error in lost)
    assert [entry.device_id for entry in await fleet.registry.list()] == [won[0].device_id]


async def test_exactly_one_of_many_agents_wins_one_name_and_the_others_keep_their_tokens(fleet):
    tokens = [await fleet.tokens.create(60) for _ in range(8)]
    results = await asyncio.gather(
        *(fleet.enrol(token, "pi") for token in tokens), return_exceptions=True
    )
    lost = [
        (token, result)
        for token, result in zip(tokens, results, strict=True)
        if not isinstance(result, pb.EnrolReply)
    ]
    assert len(lost) == 7
    assert {error.code() for _, error in lost} == {grpc.StatusCode.ALREADY_EXISTS}
    for token, _ in lost:
        await fleet.tokens.check(token)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda authority: "", "empty"),
        (lambda authority: "password", "malformed"),
        (lambda authority: JoinToken.new(authority.ca_sha256).text, "not one of this fleet"),
        (lambda authority: JoinToken.new("00" * 32).text, "not one of this fleet"),
    ],
    ids=["empty", "malformed", "unknown", "foreign"],
)
async def test_bad_token_is_unauthenticated_with_its_own_reason(fleet, make, words):
    error = await refused(fleet.enrol(make(fleet.authority), "pi"))
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert words in error.details()
    assert await fleet.registry.list() == []


async def test_taken_name_is_refused_with_the_remedy_and_leaves_the_token_good(fleet):
    await fleet.enrol(await fleet.tokens.create(60), "pi")
    token = await fleet.tokens.create(60)
    error = await refused(fleet.enrol(token, "pi"))
    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    assert "shoal devices remove pi" in error.details()
    await fleet.enrol(token, "pi-2")


async def test_removed_device_frees_its_name_for_a_reinstalled_host(fleet):
    first = await fleet.enrol(await fleet.tokens.create(60), "pi")
    await fleet.registry.revoke(first.device_id)
    second = await fleet.enrol(await fleet.tokens.create(60), "pi")
    assert second.device_id != first.device_id


@pytest.mark.parametrize("name", ["", "-pi", "a b", "a/b", "x" * 64, "0" * 32])
async def test_bad_name_is_refused_and_leaves_the_token_good(fleet, name):
    token = await fleet.tokens.create(60)
    error = await refused(fleet.enrol(token, name))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    await fleet.tokens.check(token)


async def test_agent_of_another_protocol_is_told_so(fleet):
    token = await fleet.tokens.create(60)
    message = pb.EnrolRequest(token=token, csr_pem=csr(new_key()), name="pi")
    message.min_protocol = message.max_protocol = 99
    credentials = grpc.ssl_channel_credentials(fleet.authority.ca_pem.encode())
    async with grpc.aio.secure_channel(fleet.enrol_address, credentials, OPTIONS) as channel:
        error = await refused(rpc.EnrolmentStub(channel).Enrol(message, timeout=TIMEOUT_S))
    assert "update the older" in error.details()
    await fleet.tokens.check(token)


async def test_revoked_device_gets_no_renewal(fleet):
    key = new_key()
    reply = await fleet.enrol(await fleet.tokens.create(60), "pi", key)
    await fleet.registry.revoke(reply.device_id)
    error = await refused(fleet.renew(key, reply.certificate_pem))
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "removed" in error.details()


async def test_certificate_of_an_unknown_device_gets_no_renewal(fleet):
    key = new_key()
    issued = fleet.authority.issue_device(csr(key), "never-enrolled")
    error = await refused(fleet.renew(key, issued.pem))
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_gateway_certificate_cannot_renew(fleet):
    key_pem, certificate_pem = fleet.authority.issue_service("gateway:g1")
    key = serialization.load_pem_private_key(key_pem.encode(), None)
    error = await refused(fleet.renew(key, certificate_pem))
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_certificate_of_a_foreign_authority_does_not_reach_renewal(fleet, tmp_path):
    key = new_key()
    reply = await fleet.enrol(await fleet.tokens.create(60), "pi", key)
    foreign = Authority.load_or_create(tmp_path / "foreign")
    issued = foreign.issue_device(csr(key), reply.device_id)
    error = await refused(fleet.renew(key, issued.pem))
    assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_enrol_port_does_not_offer_renewal_and_link_port_wants_a_certificate(fleet):
    credentials = grpc.ssl_channel_credentials(fleet.authority.ca_pem.encode())
    async with grpc.aio.secure_channel(fleet.enrol_address, credentials, OPTIONS) as channel:
        call = rpc.RenewalStub(channel).Renew(pb.RenewRequest(), timeout=TIMEOUT_S)
        assert (await refused(call)).code() is grpc.StatusCode.UNIMPLEMENTED
    async with grpc.aio.secure_channel(fleet.link_address, credentials, OPTIONS) as channel:
        call = rpc.RenewalStub(channel).Renew(pb.RenewRequest(), timeout=TIMEOUT_S)
        assert (await refused(call)).code() is grpc.StatusCode.UNAVAILABLE


async def test_device_refuses_a_hub_of_another_authority_before_it_sends_anything(fleet, tmp_path):
    foreign = Authority.load_or_create(tmp_path / "foreign")
    token = await fleet.tokens.create(60)
    credentials = grpc.ssl_channel_credentials(foreign.ca_pem.encode())
    async with grpc.aio.secure_channel(fleet.enrol_address, credentials, OPTIONS) as channel:
        message = pb.EnrolRequest(token=token, csr_pem=csr(new_key()), name="pi", max_protocol=1)
        error = await refused(rpc.EnrolmentStub(channel).Enrol(message, timeout=TIMEOUT_S))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    await fleet.tokens.check(token)


async def test_without_the_state_store_nobody_joins_and_the_agent_is_told_to_retry(tmp_path):
    async with serving(f"unix://{tmp_path}/none.sock", tmp_path) as fleet:
        token = JoinToken.new(fleet.authority.ca_sha256).text
        key = new_key()
        certificate_pem = fleet.authority.issue_device(csr(key), "d1").pem
        for call in (fleet.enrol(token, "pi"), fleet.renew(key, certificate_pem)):
            error = await refused(call)
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "state store" in error.details()


async def test_no_secret_is_logged(fleet):
    with structlog.testing.capture_logs() as logs:
        token = await fleet.tokens.create(60)
        await fleet.enrol(token, "pi")
        await refused(fleet.enrol(token, "pi-2"))
    assert [line["event"] for line in logs] == ["device_enrolled", "enrolment_denied"]
    assert JoinToken.parse(token).secret not in str(logs)
