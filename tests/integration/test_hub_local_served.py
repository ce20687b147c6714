"""What a device served by itself, at a real hub with a real Redis; and the protocol before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from orchestrator.fleet.local_served_redis import LocalServedStore
from orchestrator.fleet.registry_redis import connect
from orchestrator.gateway.fleet_metrics import FleetMetrics
from orchestrator.gateway.local_served import add_local_served
from shoal.v1 import device_pb2
from shoal.wire import PROTOCOL_VERSION
from tests.harness.hub_rig import (
    HubRig,
    ScriptedDevice,
    ScriptedGateway,
    delta,
    finished,
    running_hub,
)
from tests.harness.redis_server import running_redis


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture
async def rig(tmp_path: Path, redis_url: str) -> AsyncIterator[HubRig]:
    async with running_hub(tmp_path, redis_url, heartbeat_interval_ms=200) as rig:
        yield rig


async def acknowledged(device: ScriptedDevice) -> device_pb2.LocalServedAck:
    while (frame := await device.read()).WhichOneof("frame") != "local_served_ack":
        pass
    return frame.local_served_ack


def report(sequence: int) -> device_pb2.LocalServed:
    usage = device_pb2.LocalUsage(
        model="m:1", finished=2, without_hub=2, completion_tokens=9, joules=1.5, last_unix_ms=7
    )
    return device_pb2.LocalServed(journal="j", sequence=sequence, usages=[usage])


async def test_local_requests_are_counted_once_and_shown(rig: HubRig, redis_url: str) -> None:
    device = await rig.enrol("pi")
    await device.connect()
    await device.write(local_served=report(1))
    assert (await acknowledged(device)).sequence == 1
    await device.cut()

    # The acknowledgement was lost: told again on the next stream.
    await device.connect()
    await device.write(local_served=report(1))
    await acknowledged(device)
    await device.write(local_served=report(2))
    assert (await acknowledged(device)).sequence == 2
    await device.cut()

    client = connect(redis_url)
    store = LocalServedStore(client)
    sums = (await store.sums([device.device_id]))[device.device_id]
    expected = {"finished": 4, "without_hub": 4, "completion_tokens": 18, "joules": 3}
    assert sums == {"m:1": expected}
    assert len(await store.newest(10)) == 2
    devices = [
        {"id": device.device_id, "name": "pi", "state": "READY", "class": "gpu", "load": None,
         "models": []}
    ]  # fmt: skip
    await add_local_served(store, devices)
    samples = {
        (sample.name, sample.labels.get("outcome", sample.labels.get("kind"))): sample.value
        for family in FleetMetrics(devices).collect()
        for sample in family.samples
    }
    assert samples["shoal_local_requests_total", "finished"] == 4
    assert samples["shoal_local_tokens_total", "completion"] == 18
    await client.aclose()


async def test_device_of_the_protocol_before_is_welcomed_and_served(rig: HubRig) -> None:
    device = await rig.enrol("old")
    device.max_protocol = PROTOCOL_VERSION - 1
    device.min_protocol = PROTOCOL_VERSION - 2
    assert (await device.connect()).welcome.protocol == PROTOCOL_VERSION - 1
    gateway = ScriptedGateway(rig)
    await gateway.submit("r1")
    assert (await device.read_command()).submit.request_id == "r1"
    await device.send(delta("r1", "hi"), finished("r1"))
    while not (await gateway.next()).HasField("finished"):
        pass
    await gateway.close()
    await device.cut()


async def test_device_two_versions_behind_is_told_to_upgrade(rig: HubRig) -> None:
    device = await rig.enrol("ancient")
    device.min_protocol = device.max_protocol = PROTOCOL_VERSION - 2
    rejected = (await device.connect()).reject
    assert rejected.reason == device_pb2.Reject.REASON_PROTOCOL
    assert "upgrade the older one" in rejected.message
    await device.cut()
