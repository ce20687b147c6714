"""A real gateway, hub and Redis with an answering device and a capturing cloud endpoint.

All in this event loop but for Redis, whose every command is captured with MONITOR.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from orchestrator.dispatch.breaker import BreakerLimits
from orchestrator.dispatch.endpoint import (
    CloudConfig,
    CloudEndpoint,
    CloudModel,
    RetryLimits,
    Timeouts,
)
from orchestrator.fleet.registry_redis import connect
from orchestrator.gateway.app import build_gateway
from orchestrator.gateway.config import GatewayConfig
from orchestrator.identity.api_keys import Role
from orchestrator.identity.key_files import create_private, write_private
from orchestrator.identity.key_store_redis import KeyStore
from orchestrator.identity.tenants import TenantPolicy
from orchestrator.identity.tenants_redis import TenantStore
from orchestrator.request import Privacy
from shoal.v1 import inference_pb2 as pb
from tests.harness.cloud_upstream import Upstream, running_upstream
from tests.harness.hub_rig import (
    MODEL,
    HubRig,
    ScriptedDevice,
    delta,
    eventually,
    failed,
    finished,
    model_report,
    running_hub,
)
from tests.harness.ports import free_port

EDGE, BOTH, BIG = MODEL, "small-shared", "big-70b"
# Tenant -> its policy; None: none was ever stored.
TENANTS = {
    "open": Privacy.ANY,
    "careful": Privacy.LOCAL_PREFERRED,
    "closed": Privacy.LOCAL_ONLY,
    "nameless": None,
}
_FAILURES = (
    pb.FAILURE_REASON_OVERLOADED,
    pb.FAILURE_REASON_ENGINE_CRASHED,
    pb.FAILURE_REASON_DEVICE_LOST,
)


@dataclass(slots=True)
class PrivacyRig:
    """What a run talks to and looks through."""

    url: str
    keys: dict[str, str]
    admin_key: str
    upstream: Upstream
    redis_commands: bytearray
    state_url: str


class EchoingDevice:
    """Answers every request with its prompt, or fails, as the dice say."""

    def __init__(self, device: ScriptedDevice, dice: random.Random, failing: float) -> None:
        self._device = device
        self._dice = dice
        self._failing = failing

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            frame = await self._device.call.read()
            if frame.WhichOneof("frame") == "inference" and frame.inference.HasField("submit"):
                await self._answer(frame.inference.submit)

    async def _answer(self, request: pb.GenerateRequest) -> None:
        request_id = request.request_id
        if self._dice.random() < self._failing:
            reason = self._dice.choice(_FAILURES)
            await self._device.send(failed(request_id, reason, "the dice said so"))
            return
        said = request.text or " ".join(m.content for m in request.chat.messages)
        await self._device.send(delta(request_id, said), finished(request_id))


@asynccontextmanager
async def running_privacy_rig(
    folder: Path, state_url: str, dice: random.Random
) -> AsyncIterator[PrivacyRig]:
    """Everything that a request passes on its way, and may be seen on."""
    async with (
        running_hub(folder, state_url, lease_ms=3_600_000) as hub,
        running_upstream() as upstream,
    ):
        device = await hub.enrol("echo-1")
        device.models = [model_report(EDGE, slots=64), model_report(BOTH, slots=64)]
        await device.connect()
        serving = asyncio.create_task(EchoingDevice(device, dice, failing=0.25).run())
        commands = bytearray()
        watching = asyncio.create_task(_monitor(state_url, commands))
        try:
            async with _running_gateway(folder, state_url, hub, upstream) as (url, keys):
                admin_key = keys.pop("admin")
                yield PrivacyRig(url, keys, admin_key, upstream, commands, state_url)
        finally:
            for task in (serving, watching):
                task.cancel()
            await asyncio.gather(serving, watching, return_exceptions=True)
            await device.cut()


@asynccontextmanager
async def _running_gateway(
    folder: Path, state_url: str, hub: HubRig, upstream: Upstream
) -> AsyncIterator[tuple[str, dict[str, str]]]:
    key, cert = hub.authority.issue_service("gateway:gateway-1")
    write_private(folder / "gateway" / "tls.key", key.encode())
    write_private(folder / "gateway" / "tls.crt", cert.encode())
    create_private(folder / "salt.key", b"s" * 32)
    keys = await _prepare_tenants(state_url)
    port = free_port()
    config = GatewayConfig(
        gateway_url=f"http://127.0.0.1:{port}",
        state_url=state_url,
        hub_addresses=(hub.hub.addresses.link,),
        advertised_hub_addresses=(hub.hub.addresses.link,),
        enrol_address=hub.hub.addresses.enrol,
        ca_cert=folder / "ca" / "ca.crt",
        tls_key=folder / "gateway" / "tls.key",
        tls_cert=folder / "gateway" / "tls.crt",
        salt_key=folder / "salt.key",
        cloud=_cloud(upstream),
        request_timeout_s=20,
    )
    gateway = build_gateway(config)
    options = uvicorn.Config(
        gateway.app, host="127.0.0.1", port=port, log_config=None, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(options)
    serving = asyncio.create_task(server.serve())
    try:
        edge = gateway.dispatcher.edge
        await eventually(lambda: server.started and edge.connected, "the gateway serves")
        await eventually(lambda: any(s.models for s in edge.summaries()), "the device is seen")
        yield config.gateway_url, keys
    finally:
        server.should_exit = True
        await serving


def _cloud(upstream: Upstream) -> CloudConfig:
    models = (CloudModel(BIG, "big", 70 * 10**9), CloudModel(BOTH, "small", 10**9))
    timeouts = Timeouts(connect_s=1, first_byte_s=0.2, chunk_s=0.2, total_s=1)
    # Never closed for long: this run wants the endpoint asked, faults and all.
    breaker = BreakerLimits(first_rest_s=0.01, max_rest_s=0.01, max_retry_after_s=0.05)
    names = ("first", "second")
    return CloudConfig(
        tuple(
            CloudEndpoint(name, upstream.url, models, "sk-up", timeouts=timeouts, breaker=breaker)
            for name in names
        ),
        retry=RetryLimits(max_tries=2, max_wait_s=0.1, first_pause_s=0.01),
    )


async def _prepare_tenants(state_url: str) -> dict[str, str]:
    state = connect(state_url)
    keys, tenants = KeyStore(state), TenantStore(state)
    made = {"admin": await keys.create("open", "admin", Role.ADMIN)}
    for tenant, level in TENANTS.items():
        made[tenant] = await keys.create(tenant, "user", Role.USER)
        if level is not None:
            await tenants.put(tenant, TenantPolicy(level))
    made["changing"] = await keys.create("changing", "user", Role.USER)
    await tenants.put("changing", TenantPolicy(Privacy.ANY))
    await state.aclose()
    return made


async def _monitor(state_url: str, into: bytearray) -> None:
    """Everything that anybody ever sends to Redis."""
    reader, writer = await asyncio.open_unix_connection(state_url.removeprefix("unix://"))
    writer.write(b"MONITOR\r\n")
    await writer.drain()
    try:
        while part := await reader.read(1 << 16):
            into += part
    finally:
        writer.close()
