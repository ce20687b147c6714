"""A small fleet for agent tests: real TLS, real gRPC, a scripted hub and a join page."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shoal.v1 import device_pb2 as pb
from shoal.v1 import device_pb2_grpc, enrolment_pb2, enrolment_pb2_grpc
from shoal.wire import HUB_TLS_NAME, PROTOCOL_VERSION, SERVER_OPTIONS
from tests.harness.join_page import JoinPage


class Authority:
    """A certificate authority made for one test."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test fleet")])
        self.certificate = self._build(self.name, self.key.public_key(), ca=True)
        self.pem = self.certificate.public_bytes(serialization.Encoding.PEM)
        der = self.certificate.public_bytes(serialization.Encoding.DER)
        self.sha256 = hashlib.sha256(der).hexdigest()

    def token(self, token_id: str = "t1") -> str:
        return f"shoal-join.{token_id}.secret.{self.sha256}"

    def issue(self, csr_pem: str, device_id: str, age: timedelta, life: timedelta) -> str:
        request = x509.load_pem_x509_csr(csr_pem.encode())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"device:{device_id}")])
        certificate = self._build(subject, request.public_key(), age=age, life=life)
        return certificate.public_bytes(serialization.Encoding.PEM).decode()

    def server_credentials(self, *, mutual: bool) -> grpc.ServerCredentials:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hub:test")])
        certificate = self._build(subject, key.public_key(), dns=HUB_TLS_NAME)
        key_pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        pair = (key_pem, certificate.public_bytes(serialization.Encoding.PEM))
        if mutual:
            return grpc.ssl_server_credentials([pair], self.pem, True)
        return grpc.ssl_server_credentials([pair])

    def _build(
        self,
        subject: x509.Name,
        public_key: Any,
        *,
        ca: bool = False,
        dns: str = "",
        age: timedelta = timedelta(minutes=5),
        life: timedelta = timedelta(hours=1),
    ) -> x509.Certificate:
        start = datetime.now(UTC) - age
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + life)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if dns:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([x509.DNSName(dns)]), critical=False
            )
        return builder.sign(self.key, hashes.SHA256())


class Connection:
    """One device stream as the hub sees it."""

    def __init__(self, context: Any) -> None:
        self.frames: asyncio.Queue[pb.DeviceFrame | None] = asyncio.Queue()
        self.outbox: asyncio.Queue[pb.HubFrame | None] = asyncio.Queue()
        self.peer = context.auth_context().get("x509_common_name")
        self.hello: pb.Hello | None = None

    def send(self, **frame: Any) -> None:
        self.outbox.put_nowait(pb.HubFrame(**frame))

    def hang_up(self) -> None:
        self.outbox.put_nowait(None)

    async def next(self, kind: str, timeout_s: float = 15.0) -> pb.DeviceFrame:
        """The next frame of this kind; others are skipped."""
        async with asyncio.timeout(timeout_s):
            while True:
                frame = await self.frames.get()
                if frame is None:
                    raise ConnectionError(f"the device hung up before {kind}")
                if frame.WhichOneof("frame") == kind:
                    return frame

    async def until_closed(self, timeout_s: float = 15.0) -> None:
        async with asyncio.timeout(timeout_s):
            while await self.frames.get() is not None:
                pass


@dataclass
class FleetScript:
    """What the test's fleet answers."""

    heartbeat_ms: int = 100
    lease_ms: int = 2000
    refuse: tuple[grpc.StatusCode, str] | None = None
    certificate_age: timedelta = timedelta(minutes=5)
    certificate_life: timedelta = timedelta(hours=1)
    acknowledge: bool = True
    protocol: int = PROTOCOL_VERSION


@dataclass
class Fleet:
    """Enrol port, link port and join page on loopback."""

    authority: Authority = field(default_factory=Authority)
    presented: Authority | None = None  # what the join page and the enrol port claim to be
    script: FleetScript = field(default_factory=FleetScript)
    enrolments: list[enrolment_pb2.EnrolRequest] = field(default_factory=list)
    renewed: asyncio.Event = field(default_factory=asyncio.Event)
    epoch: int = 0

    async def start(self) -> None:
        self.connections: asyncio.Queue[Connection] = asyncio.Queue()
        face = self.presented or self.authority
        self._enrol = grpc.aio.server(options=SERVER_OPTIONS)
        enrolment_pb2_grpc.add_EnrolmentServicer_to_server(self, self._enrol)
        port = self._enrol.add_secure_port("127.0.0.1:0", face.server_credentials(mutual=False))
        await self._enrol.start()
        self.link_port = 0
        await self.start_link()
        page = {
            "ca_pem": (self.presented or self.authority).pem.decode(),
            "enrol_address": f"127.0.0.1:{port}",
            "hub_addresses": [self.link_address],
            "protocol": {"min": self.script.protocol - 1, "max": self.script.protocol},
        }
        self.page = page
        self._page = JoinPage(page)
        self.url = await self._page.start()

    async def start_link(self, *, move: bool = False) -> None:
        if move:
            self.link_port = 0
        self._link = grpc.aio.server(options=SERVER_OPTIONS)
        device_pb2_grpc.add_DeviceLinkServicer_to_server(self, self._link)
        enrolment_pb2_grpc.add_RenewalServicer_to_server(self, self._link)
        self.link_port = self._link.add_secure_port(
            f"127.0.0.1:{self.link_port}", self.authority.server_credentials(mutual=True)
        )
        await self._link.start()

    @property
    def link_address(self) -> str:
        return f"127.0.0.1:{self.link_port}"

    async def stop_link(self) -> None:
        await self._link.stop(None)

    async def stop(self) -> None:
        await self._page.stop()
        await self._link.stop(None)
        await self._enrol.stop(None)

    async def accept(self, timeout_s: float = 20.0) -> Connection:
        """The next device stream, welcomed."""
        async with asyncio.timeout(timeout_s):
            connection = await self.connections.get()
        self.epoch += 1
        connection.send(
            welcome=pb.Welcome(
                protocol=self.script.protocol,
                epoch=self.epoch,
                heartbeat_interval_ms=self.script.heartbeat_ms,
                lease_ms=self.script.lease_ms,
                hub_id="test",
            )
        )
        return connection

    async def Connect(self, frames: Any, context: Any) -> AsyncIterator[pb.HubFrame]:
        connection = Connection(context)
        reader = asyncio.create_task(self._read(connection, frames))
        try:
            while (frame := await connection.outbox.get()) is not None:
                yield frame
        finally:
            reader.cancel()
            connection.frames.put_nowait(None)

    async def _read(self, connection: Connection, frames: Any) -> None:
        async for frame in frames:
            kind = frame.WhichOneof("frame")
            if kind == "hello":
                connection.hello = frame.hello
                self.connections.put_nowait(connection)
            elif kind == "heartbeat" and self.script.acknowledge:
                connection.send(heartbeat_ack=pb.HeartbeatAck())
            connection.frames.put_nowait(frame)
        connection.frames.put_nowait(None)
        connection.hang_up()

    async def Enrol(self, request: Any, context: Any) -> Any:
        self.enrolments.append(request)
        if self.script.refuse:
            await context.abort(*self.script.refuse)
        return self._certificate(request.csr_pem)

    async def Renew(self, request: Any, context: Any) -> Any:
        self.renewed.set()
        self.script.certificate_age = timedelta(minutes=5)
        self.script.certificate_life = timedelta(hours=1)
        return self._certificate(request.csr_pem)

    def _certificate(self, csr_pem: str) -> enrolment_pb2.EnrolReply:
        return enrolment_pb2.EnrolReply(
            device_id="d1",
            certificate_pem=self.authority.issue(
                csr_pem, "d1", self.script.certificate_age, self.script.certificate_life
            ),
            ca_pem=self.authority.pem.decode(),
            hub_addresses=[self.link_address],
        )
