"""Simulated agents for `bench.hub_scale`: real certificates, channels and frames, no engine."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from shoal.v1 import device_pb2 as pb
from shoal.v1 import device_pb2_grpc as rpc
from shoal.v1 import engine_pb2, inference_pb2
from shoal.wire import CHANNEL_OPTIONS, HUB_TLS_NAME, MIN_PROTOCOL_VERSION, PROTOCOL_VERSION

# Handshakes under way at once, in each process.
AT_ONCE = 24
MODEL = "bench-1b"


@dataclass(frozen=True, slots=True)
class Setting:
    """What all processes are told."""

    folder: Path
    state_url: str
    num_agents: int
    heartbeat_s: float
    link: str = ""


@dataclass(slots=True)
class Agents:
    """The simulated agents of one client process."""

    setting: Setting
    key_pem: bytes
    certificates: list[bytes]
    ca_pem: bytes
    connected: int = 0
    failures: list[str] = field(default_factory=list)
    answers_ms: list[float] = field(default_factory=list)
    measuring: bool = False

    async def run(self) -> None:
        """Connect all, beat until told to report on stdin, and print what was seen."""
        gate = asyncio.Semaphore(AT_ONCE)
        tasks = [asyncio.create_task(self._agent(c, gate)) for c in self.certificates]
        read = asyncio.get_running_loop().run_in_executor
        print("started", flush=True)
        while (await read(None, sys.stdin.readline)).strip() == "count":
            self.measuring = True
            report = {"connected": self.connected, "failures": self.failures[:3]}
            report["answers_ms"] = self.answers_ms
            print(json.dumps(report), flush=True)
            self.answers_ms = []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _agent(self, certificate: bytes, gate: asyncio.Semaphore) -> None:
        credentials = grpc.ssl_channel_credentials(self.ca_pem, self.key_pem, certificate)
        options = (
            *CHANNEL_OPTIONS,
            ("grpc.ssl_target_name_override", HUB_TLS_NAME),
            ("grpc.use_local_subchannel_pool", 1),
        )
        channel = grpc.aio.secure_channel(self.setting.link, credentials, options=options)
        try:
            async with gate:
                call = rpc.DeviceLinkStub(channel).Connect()  # type: ignore[no-untyped-call]
                await call.write(pb.DeviceFrame(hello=_hello()))
                frame = await call.read()
            self.connected += 1
            await self._beat(call, frame.welcome.epoch)
        except grpc.aio.AioRpcError as error:
            self.failures.append(f"{error.code().name}: {error.details()}")
        finally:
            self.connected -= 1

    async def _beat(self, call: grpc.aio.StreamStreamCall, epoch: int) -> None:
        await asyncio.sleep(random.uniform(0, self.setting.heartbeat_s))
        beat = pb.DeviceFrame(epoch=epoch, heartbeat=_heartbeat())
        while True:
            began_s = time.perf_counter()
            await call.write(beat)
            if await call.read() is grpc.aio.EOF:
                self.failures.append("the hub ended the stream")
                return
            took_s = time.perf_counter() - began_s
            if self.measuring:
                self.answers_ms.append(round(took_s * 1_000, 2))
            await asyncio.sleep(self.setting.heartbeat_s - took_s)


def _hello() -> pb.Hello:
    report = engine_pb2.ModelReport(
        name=MODEL,
        fingerprint="ab" * 32,
        num_parameters=1_000_000_000,
        context_tokens=2_048,
        slots=4,
        prefill_tokens_per_s=500,
        decode_tokens_per_s=40,
        decode_batch_tokens_per_s=[40, 70, 110],
        state=engine_pb2.MODEL_STATE_READY,
    )
    capabilities = pb.CapabilityReport(
        hostname="a-board-in-a-hall",
        device_class="arm_cpu",
        detected_class="arm_cpu",
        os="Linux",
        architecture="aarch64",
        cpu_model="ARM Cortex-A76",
        cores=4,
        cpu_features=["neon", "dotprod", "fp16"],
        memory_bytes=8 * 2**30,
    )
    return pb.Hello(
        min_protocol=MIN_PROTOCOL_VERSION,
        max_protocol=PROTOCOL_VERSION,
        agent_version="bench",
        capabilities=capabilities,
        models=[report],
    )


def _heartbeat() -> pb.Heartbeat:
    load = pb.DeviceLoad(
        cpu_percent=12.5, memory_available_bytes=2**32, memory_total_bytes=2**33, power_w=6.5
    )
    engine = inference_pb2.EngineLoad(model=MODEL, slots=4, kv_capacity_tokens=8_192)
    return pb.Heartbeat(load=load, engines=[engine], device_unix_ms=int(time.time() * 1_000))
