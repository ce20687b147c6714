"""A gateway on a real HTTP port, with a hub that speaks its contract by a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import uvicorn

from orchestrator.dispatch.endpoint import CloudConfig
from orchestrator.gateway.app import build_gateway
from orchestrator.gateway.config import GatewayConfig
from orchestrator.identity.authority import Authority
from orchestrator.identity.key_files import create_private, write_private
from shoal.v1 import fleet_pb2, fleet_pb2_grpc, inference_pb2_grpc
from shoal.v1 import inference_pb2 as pb
from shoal.wire import HUB_TLS_NAME, SERVER_OPTIONS
from tests.harness.ports import free_port

MODEL = "smollm2-135m-instruct"
START_DEADLINE_S = 15.0

Script = Callable[[pb.GenerateRequest], AsyncIterator[pb.SequenceUpdate]]


def placed(**changes: object) -> pb.Placed:
    return pb.Placed(
        **{
            "device_id": "d1",
            "device_name": "bench-arm",
            "device_class": "arm_cpu",
            "predicted_ttft_ms": 120.0,
            "predicted_tpot_ms": 14.0,
            "reason": "at most 1B parameters: arm_cpu first",
            "attempt": 1,
            **changes,
        }
    )


def finished(completion_tokens: int = 2, reason: int = pb.Finished.REASON_STOP) -> pb.Finished:
    usage = pb.Usage(prompt_tokens=11, completion_tokens=completion_tokens, cached_tokens=4)
    usage.cached_tokens_by_tier["host"] = 4
    timings = pb.Timings(ttft_ms=100, tpot_ms=12, total_ms=130, joules=1.5, joules_estimated=True)
    return pb.Finished(reason=reason, usage=usage, timings=timings)


async def say(*words: str) -> AsyncIterator[pb.SequenceUpdate]:
    """A sequence that generates the words, one a frame, the last one with the end."""
    yield pb.SequenceUpdate(placed=placed())
    yield pb.SequenceUpdate(admitted=pb.Admitted(prompt_tokens=11))
    for word in words[:-1]:
        yield pb.SequenceUpdate(delta=pb.Delta(text=word, tokens=[1]))
    yield pb.SequenceUpdate(
        delta=pb.Delta(text=words[-1], tokens=[1]), finished=finished(len(words))
    )


async def fail(reason: int, after: tuple[str, ...] = ()) -> AsyncIterator[pb.SequenceUpdate]:
    """A sequence that fails, after some words or at once."""
    yield pb.SequenceUpdate(placed=placed())
    for word in after:
        yield pb.SequenceUpdate(delta=pb.Delta(text=word, tokens=[1]))
    yield pb.SequenceUpdate(
        failed=pb.Failed(reason=reason, message="as scripted", retry_after_ms=2500)
    )


async def hang(*words: str) -> AsyncIterator[pb.SequenceUpdate]:
    """A sequence that never ends."""
    yield pb.SequenceUpdate(placed=placed())
    for word in words:
        yield pb.SequenceUpdate(delta=pb.Delta(text=word, tokens=[1]))
    await asyncio.Event().wait()


class ScriptedHub(inference_pb2_grpc.InferenceServicer, fleet_pb2_grpc.FleetServicer):
    """Serves Inference and Fleet over real mutual TLS; `script` decides what requests get."""

    def __init__(self) -> None:
        self.script: Script = lambda request: say("Hello", " world")
        self.requests: list[pb.GenerateRequest] = []
        self.cancelled: list[str] = []
        self.ended_sessions = 0
        self.summary = fleet_pb2.HubSummary(hub_id="hub-1", ready_devices=1)
        self.summary.models.add(
            name=MODEL, num_parameters=135_000_000, context_tokens=2048, ready_devices=1,
            device_classes=["arm_cpu"], free_slots=4,
        )  # fmt: skip

    async def Session(
        self, commands: AsyncIterator[pb.InferenceCommand], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.InferenceFrame]:
        frames: asyncio.Queue[pb.InferenceFrame] = asyncio.Queue()
        running: dict[str, asyncio.Task[None]] = {}

        async def play(request: pb.GenerateRequest) -> None:
            async for update in self.script(request):
                update.request_id = request.request_id
                frames.put_nowait(pb.InferenceFrame(updates=[update]))

        async def listen() -> None:
            async for command in commands:
                if command.HasField("submit"):
                    self.requests.append(command.submit)
                    task = asyncio.create_task(play(command.submit))
                    running[command.submit.request_id] = task
                else:
                    self.cancelled.append(command.cancel.request_id)
                    running[command.cancel.request_id].cancel()

        listener = asyncio.create_task(listen())
        try:
            while True:
                yield await frames.get()
        finally:
            self.ended_sessions += 1
            for task in (listener, *running.values()):
                task.cancel()

    async def WatchSummary(
        self, request: fleet_pb2.WatchSummaryRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[fleet_pb2.HubSummary]:
        yield self.summary
        await asyncio.Event().wait()

    async def ListDevices(
        self, request: fleet_pb2.ListDevicesRequest, context: grpc.aio.ServicerContext
    ) -> fleet_pb2.ListDevicesReply:
        reply = fleet_pb2.ListDevicesReply()
        status = reply.devices.add(device_id="d1", name="bench-arm", state="READY")
        status.capabilities.device_class = "arm_cpu"
        status.models.add(name=MODEL, num_parameters=135_000_000, state=2)
        return reply


@dataclass
class GatewayRig:
    """A running gateway."""

    url: str
    hub: ScriptedHub
    admin_key: str
    key: str
    port: int
    hub_port: int
    authority: Authority
    server: grpc.aio.Server | None = field(default=None)

    async def stop_hub(self) -> None:
        """End the hub's server, as a crash of its process would."""
        if self.server is not None:
            await self.server.stop(grace=None)
            self.server = None

    async def start_hub(self) -> None:
        """Serve the hub on its port."""
        self.server = await _serve_hub(self.hub, self.authority, self.hub_port)


async def _serve_hub(hub: ScriptedHub, authority: Authority, port: int) -> grpc.aio.Server:
    key, cert = authority.issue_service("hub:hub-1", (HUB_TLS_NAME,))
    server = grpc.aio.server(options=SERVER_OPTIONS)
    inference_pb2_grpc.add_InferenceServicer_to_server(hub, server)
    fleet_pb2_grpc.add_FleetServicer_to_server(hub, server)
    credentials = grpc.ssl_server_credentials(
        [(key.encode(), cert.encode())], authority.ca_pem.encode(), require_client_auth=True
    )
    server.add_secure_port(f"127.0.0.1:{port}", credentials)
    await server.start()
    return server


@asynccontextmanager
async def running_gateway(
    folder: Path,
    state_url: str,
    *,
    cloud: CloudConfig | None = None,
    max_in_flight: int = 64,
    depot_dir: Path | None = None,
) -> AsyncIterator[GatewayRig]:
    """A gateway in this event loop, behind uvicorn, with a scripted hub and real Redis."""
    from orchestrator.fleet.registry_redis import connect
    from orchestrator.identity.api_keys import Role
    from orchestrator.identity.key_store_redis import KeyStore
    from orchestrator.identity.tenants import TenantPolicy
    from orchestrator.identity.tenants_redis import TenantStore
    from orchestrator.request import Privacy

    authority = Authority.load_or_create(folder / "ca")
    key, cert = authority.issue_service("gateway:gateway-1")
    write_private(folder / "gateway" / "tls.key", key.encode())
    write_private(folder / "gateway" / "tls.crt", cert.encode())
    create_private(folder / "salt.key", b"s" * 32)
    state = connect(state_url)
    keys = KeyStore(state)
    admin_key = await keys.create("default", "admin", Role.ADMIN)
    user_key = await keys.create("acme", "user", Role.USER)
    tenants = TenantStore(state)
    for tenant in ("default", "acme"):
        await tenants.put(tenant, TenantPolicy(Privacy.ANY))
    await state.aclose()
    port, hub_port = free_port(), free_port()
    config = GatewayConfig(
        gateway_url=f"http://127.0.0.1:{port}",
        state_url=state_url,
        hub_addresses=(f"127.0.0.1:{hub_port}",),
        advertised_hub_addresses=(f"192.0.2.7:{hub_port}",),
        enrol_address="127.0.0.1:1",
        ca_cert=folder / "ca" / "ca.crt",
        tls_key=folder / "gateway" / "tls.key",
        tls_cert=folder / "gateway" / "tls.crt",
        salt_key=folder / "salt.key",
        depot_dir=depot_dir,
        cloud=cloud or CloudConfig(),
        max_in_flight=max_in_flight,
        request_timeout_s=20,
    )
    gateway = build_gateway(config)
    options = uvicorn.Config(
        gateway.app, host="127.0.0.1", port=port, log_config=None, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(options)
    rig = GatewayRig(
        config.gateway_url, ScriptedHub(), admin_key, user_key, port, hub_port, authority
    )
    await rig.start_hub()
    serving = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(START_DEADLINE_S):
            while not (server.started and gateway.dispatcher.edge.connected):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        yield rig
    finally:
        server.should_exit = True
        await serving
        await rig.stop_hub()
