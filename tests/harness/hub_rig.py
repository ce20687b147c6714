"""A real hub (TLS, Redis) with scripted devices and gateways that speak its contracts."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from orchestrator.config import HubConfig
from orchestrator.fleet.registry import DeviceEntry
from orchestrator.fleet.registry_redis import RedisRegistry, connect
from orchestrator.fleet.view import DeviceId
from orchestrator.hub.build import build_hub
from orchestrator.hub.service import Hub
from orchestrator.identity.authority import Authority
from shoal.v1 import (
    device_pb2,
    device_pb2_grpc,
    engine_pb2,
    fleet_pb2,
    fleet_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
)
from shoal.wire import CHANNEL_OPTIONS, HUB_TLS_NAME, MIN_PROTOCOL_VERSION, PROTOCOL_VERSION

DEADLINE_S = 10.0
MODEL = "smollm2-135m-instruct"


async def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until the condition holds; fails after DEADLINE_S."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the state lives in the code under test
            await asyncio.sleep(0.01)
    assert condition(), what


def model_report(name: str = MODEL, *, slots: int = 4) -> engine_pb2.ModelReport:
    return engine_pb2.ModelReport(
        name=name,
        fingerprint="ab" * 32,
        num_parameters=135_000_000,
        context_tokens=2048,
        slots=slots,
        prefill_tokens_per_s=500,
        decode_tokens_per_s=80,
        decode_batch_tokens_per_s=[80, 120, 160],
        state=engine_pb2.MODEL_STATE_READY,
    )


class HubRig:
    """One hub and the means to reach it."""

    def __init__(self, hub: Hub, config: HubConfig, authority: Authority) -> None:
        self.hub = hub
        self.config = config
        self.authority = authority
        self._client = connect(config.state_url)
        self.registry = RedisRegistry(self._client)

    async def close(self) -> None:
        await self._client.aclose()

    def channel(self, key_pem: bytes, certificate_pem: bytes) -> grpc.aio.Channel:
        credentials = grpc.ssl_channel_credentials(
            self.authority.ca_pem.encode(), key_pem, certificate_pem
        )
        options = [*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", HUB_TLS_NAME)]
        return grpc.aio.secure_channel(self.hub.addresses.link, credentials, options=options)

    def gateway_channel(self) -> grpc.aio.Channel:
        key, certificate = self.authority.issue_service("gateway:g1")
        return self.channel(key.encode(), certificate.encode())

    async def enrol(self, name: str) -> ScriptedDevice:
        device_id = uuid.uuid4().hex
        key = ec.generate_private_key(ec.SECP256R1())
        csr = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(x509.Name([]))
            .sign(key, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
            .decode()
        )
        certificate = self.authority.issue_device(csr, device_id).pem
        await self.registry.add(DeviceEntry(DeviceId(device_id), name))
        key_pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return ScriptedDevice(self, device_id, name, (key_pem, certificate.encode()))

    async def statuses(self) -> dict[str, fleet_pb2.DeviceStatus]:
        async with self.gateway_channel() as channel:
            stub = fleet_pb2_grpc.FleetStub(channel)
            reply = await stub.ListDevices(fleet_pb2.ListDevicesRequest(), timeout=DEADLINE_S)
        return {status.name: status for status in reply.devices}

    async def state_becomes(self, name: str, state: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while (await self.statuses())[name].state != state:  # noqa: ASYNC110 - over the wire
                await asyncio.sleep(0.02)


class ScriptedDevice:
    """A device whose every frame the test decides."""

    def __init__(
        self, rig: HubRig, device_id: str, name: str, key_and_certificate: tuple[bytes, bytes]
    ) -> None:
        self._rig = rig
        self.device_id = device_id
        self.name = name
        self._keys = key_and_certificate
        self.epoch = 0
        self.device_class = "x86_cpu"
        self.models = [model_report()]
        self.running: list[str] = []
        self.installation = device_pb2.Installation()
        self.min_protocol = MIN_PROTOCOL_VERSION
        self.max_protocol = PROTOCOL_VERSION

    async def connect(self, rig: HubRig | None = None) -> device_pb2.HubFrame:
        """Open a fresh stream to `rig` (else its own), say Hello, return the hub's first frame."""
        self.channel = (rig or self._rig).channel(*self._keys)
        self.call = device_pb2_grpc.DeviceLinkStub(self.channel).Connect()
        hello = device_pb2.Hello(
            min_protocol=self.min_protocol,
            max_protocol=self.max_protocol,
            agent_version="test",
            capabilities=device_pb2.CapabilityReport(
                device_class=self.device_class, detected_class=self.device_class, cores=2
            ),
            models=self.models,
            running_request_ids=self.running,
            last_epoch=self.epoch,
            installation=self.installation,
        )
        await self.call.write(device_pb2.DeviceFrame(hello=hello))
        first = await self.read()
        self.epoch = first.welcome.epoch
        return first

    async def read(self) -> device_pb2.HubFrame:
        frame = await asyncio.wait_for(self.call.read(), DEADLINE_S)
        assert frame is not grpc.aio.EOF, "the hub ended the stream"
        return frame

    async def read_command(self) -> inference_pb2.InferenceCommand:
        frame = await self.read()
        assert frame.WhichOneof("frame") == "inference", frame
        return frame.inference

    async def write(self, **frame: object) -> None:
        await self.call.write(device_pb2.DeviceFrame(epoch=self.epoch, **frame))

    async def send(self, *updates: inference_pb2.SequenceUpdate) -> None:
        await self.write(inference=inference_pb2.InferenceFrame(updates=updates))

    async def cut(self) -> None:
        """End the connection as a killed agent's kernel does."""
        self.call.cancel()
        await asyncio.wait([asyncio.create_task(self.channel.close())], timeout=DEADLINE_S)


class ScriptedGateway:
    """A gateway session; frames are kept in the order they came."""

    def __init__(self, rig: HubRig) -> None:
        self.channel = rig.gateway_channel()
        self.call = inference_pb2_grpc.InferenceStub(self.channel).Session()
        self.num_frames = 0
        self._waiting: list[inference_pb2.SequenceUpdate] = []

    async def submit(self, request_id: str, **fields: object) -> None:
        fields = {"model": MODEL, "text": "Hello there", "tenant": "t1", **fields}
        request = inference_pb2.GenerateRequest(request_id=request_id, **fields)
        await self.call.write(inference_pb2.InferenceCommand(submit=request))

    async def cancel(self, request_id: str) -> None:
        cancel = inference_pb2.CancelRequest(request_id=request_id)
        await self.call.write(inference_pb2.InferenceCommand(cancel=cancel))

    async def next(self) -> inference_pb2.SequenceUpdate:
        while not self._waiting:
            frame = await asyncio.wait_for(self.call.read(), DEADLINE_S)
            assert frame is not grpc.aio.EOF, "the hub ended the session"
            self.num_frames += 1
            self._waiting.extend(frame.updates)
        return self._waiting.pop(0)

    async def close(self) -> None:
        self.call.cancel()
        await asyncio.wait([asyncio.create_task(self.channel.close())], timeout=DEADLINE_S)


def delta(request_id: str, text: str) -> inference_pb2.SequenceUpdate:
    return inference_pb2.SequenceUpdate(
        request_id=request_id, delta=inference_pb2.Delta(text=text, tokens=[1])
    )


def finished(request_id: str) -> inference_pb2.SequenceUpdate:
    return inference_pb2.SequenceUpdate(
        request_id=request_id,
        finished=inference_pb2.Finished(
            reason=inference_pb2.Finished.REASON_STOP,
            usage=inference_pb2.Usage(prompt_tokens=3, completion_tokens=2),
            timings=inference_pb2.Timings(ttft_ms=30, tpot_ms=12, total_ms=60, mean_batch=1),
        ),
    )


def failed(request_id: str, reason: int, message: str = "") -> inference_pb2.SequenceUpdate:
    return inference_pb2.SequenceUpdate(
        request_id=request_id, failed=inference_pb2.Failed(reason=reason, message=message)
    )


@asynccontextmanager
async def running_hub(
    folder: Path, state_url: str, *, hub_id: str = "h1", **settings: object
) -> AsyncIterator[HubRig]:
    """A hub with the authority under `folder`, state in `state_url`."""
    ca_dir, tls_dir = folder / "ca", folder / hub_id
    authority = Authority.load_or_create(ca_dir)
    tls_dir.mkdir(exist_ok=True)
    key, certificate = authority.issue_service(f"hub:{hub_id}", [HUB_TLS_NAME])
    (tls_dir / "tls.key").write_text(key)
    (tls_dir / "tls.crt").write_text(certificate)
    config = HubConfig(hub_id, state_url, ca_dir, tls_dir, **settings)  # type: ignore[arg-type]
    hub = build_hub(config)
    await hub.start()
    rig = HubRig(hub, config, authority)
    try:
        yield rig
    finally:
        await hub.stop()
        await rig.close()
