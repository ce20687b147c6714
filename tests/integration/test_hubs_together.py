"""Two hubs of one fleet: whose a device is, and what they tell one another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from orchestrator.fleet.registry_redis import connect
from orchestrator.fleet.view import DeviceId, DeviceState
from shoal.v1 import device_pb2, fleet_pb2, fleet_pb2_grpc
from tests.harness.hub_rig import (
    DEADLINE_S,
    HubRig,
    ScriptedGateway,
    running_hub,
)
from tests.harness.redis_server import running_redis

TERMS = {"heartbeat_interval_ms": 200, "lease_ms": 1_000, "tick_ms": 50}


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture
async def rigs(tmp_path: Path, redis_url: str) -> AsyncIterator[tuple[HubRig, HubRig]]:
    client = connect(redis_url)
    await client.flushall()
    await client.aclose()
    async with (
        running_hub(tmp_path, redis_url, hub_id="h1", **TERMS) as first,
        running_hub(tmp_path, redis_url, hub_id="h2", **TERMS) as second,
    ):
        yield first, second


async def test_device_that_moves_never_appears_twice(rigs: tuple[HubRig, HubRig]) -> None:
    first, second = rigs
    device = await first.enrol("pi")
    await device.connect()
    old_call, old_epoch = device.call, device.epoch
    await device.connect(second)
    assert device.epoch == old_epoch + 1
    # The older stream is told and ended; the older hub forgets the device.
    last = device_pb2.HubFrame()
    while True:
        frame = await old_call.read()
        if not isinstance(frame, device_pb2.HubFrame):
            break
        last = frame
    assert last.reject.reason == device_pb2.Reject.REASON_REPLACED
    # What the older hub thought of it is not written over what the newer one knows.
    await recorded_as(second, device.device_id, DeviceState.READY)
    statuses = [(await rig.statuses())["pi"] for rig in rigs]
    assert [status.hub_id for status in statuses] == ["h2", "h2"]
    assert [status.state for status in statuses] == ["SUSPECT", "READY"]
    await device.cut()


async def test_device_of_a_silent_hub_keeps_its_newer_state(rigs: tuple[HubRig, HubRig]) -> None:
    first, second = rigs
    device = await first.enrol("pi")
    await device.connect()
    await device.cut()
    await device.connect(second)
    # Longer than a lease: the first hub must not call it DOWN.
    for _ in range(8):
        await device.write(heartbeat=device_pb2.Heartbeat())
        while (await device.read()).WhichOneof("frame") != "heartbeat_ack":
            pass
        await first.statuses()
    await recorded_as(first, device.device_id, DeviceState.READY)
    await device.cut()


async def test_any_hub_drains_and_removes_a_device_of_another(
    rigs: tuple[HubRig, HubRig],
) -> None:
    first, second = rigs
    device = await first.enrol("pi")
    await device.connect()
    async with second.gateway_channel() as channel:
        stub = fleet_pb2_grpc.FleetStub(channel)
        request = fleet_pb2.DeviceRequest(device="pi")
        reply = await stub.DrainDevice(request, timeout=DEADLINE_S)
        assert reply.state == "DRAINING"
        assert (await device.read()).WhichOneof("frame") == "drain"
        await stub.RemoveDevice(request, timeout=DEADLINE_S)
        assert (await device.read()).reject.reason == device_pb2.Reject.REASON_REVOKED
    assert await first.statuses() == {}


async def test_hub_that_restarts_takes_up_its_own_devices_only(
    rigs: tuple[HubRig, HubRig], tmp_path: Path
) -> None:
    first, second = rigs
    mine, theirs = await first.enrol("mine"), await first.enrol("theirs")
    await mine.connect()
    await theirs.connect(second)
    await recorded_as(first, mine.device_id, DeviceState.READY)
    await recorded_as(first, theirs.device_id, DeviceState.READY)
    await first.hub.stop()
    async with running_hub(tmp_path, first.config.state_url, hub_id="h1", **TERMS) as again:
        await again.state_becomes("mine", "SUSPECT")
        statuses = await again.statuses()
        assert (statuses["theirs"].hub_id, statuses["theirs"].state) == ("h2", "SUSPECT")
        await mine.connect(again)
        gateway = ScriptedGateway(again)
        await gateway.submit("r1")
        assert (await gateway.next()).placed.device_name == "mine"
        await gateway.close()
        await mine.cut()
    await theirs.cut()


async def recorded_as(rig: HubRig, device_id: str, state: DeviceState) -> None:
    """Wait until the registry holds the state."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            entry = await rig.registry.get(DeviceId(device_id))
            if entry is not None and entry.state is state:
                return
            await asyncio.sleep(0.02)
