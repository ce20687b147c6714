"""Devices at a real hub: Hello, epochs, leases, drain, removal, restart."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from orchestrator.fleet.registry_redis import connect
from orchestrator.fleet.view import DeviceId
from shoal.v1 import (
    device_pb2,
    device_pb2_grpc,
    engine_pb2,
    fleet_pb2,
    fleet_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
)
from shoal.wire import PROTOCOL_VERSION
from tests.harness.hub_rig import MODEL, HubRig, ScriptedGateway, model_report, running_hub
from tests.harness.ports import free_port
from tests.harness.redis_server import running_redis


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture
async def rig(tmp_path: Path, redis_url: str) -> AsyncIterator[HubRig]:
    client = connect(redis_url)
    await client.flushall()
    await client.aclose()
    async with running_hub(
        tmp_path, redis_url, heartbeat_interval_ms=200, lease_ms=1_000, tick_ms=50
    ) as rig:
        yield rig


async def test_hello_is_welcomed_and_the_device_is_listed(rig: HubRig) -> None:
    device = await rig.enrol("pi")
    assert (await rig.statuses())["pi"].state == "ENROLLED"
    welcome = (await device.connect()).welcome
    assert (welcome.protocol, welcome.epoch, welcome.hub_id) == (PROTOCOL_VERSION, 1, "h1")
    assert (welcome.heartbeat_interval_ms, welcome.lease_ms) == (200, 1_000)
    status = (await rig.statuses())["pi"]
    assert status.state == "READY"
    assert status.certificate_expires_unix_ms > time.time() * 1000
    assert status.capabilities.device_class == "x86_cpu"
    assert [model.name for model in status.models] == [MODEL]
    await device.cut()


async def test_heartbeat_is_acknowledged_and_its_load_shown(rig: HubRig) -> None:
    device = await rig.enrol("pi")
    await device.connect()
    load = device_pb2.DeviceLoad(cpu_percent=50, conditions=["swapping"])
    engine = inference_pb2.EngineLoad(model=MODEL, running=2, waiting=1)
    beat = device_pb2.Heartbeat(load=load, engines=[engine])
    await device.write(heartbeat=beat)
    assert (await device.read()).heartbeat_ack.next_interval_ms == 200
    status = (await rig.statuses())["pi"]
    assert list(status.load.conditions) == ["swapping"]
    assert status.models[0].load.running == 2
    await device.cut()


async def test_cut_device_is_suspect_then_down_then_ready_with_its_hello(rig: HubRig) -> None:
    device = await rig.enrol("pi")
    await device.connect()
    await device.cut()
    await rig.state_becomes("pi", "SUSPECT")
    await rig.state_becomes("pi", "DOWN")
    assert (await device.connect()).welcome.epoch == 2
    assert [s.state for s in (await rig.statuses()).values()] == ["READY"]
    await device.cut()


async def test_silent_device_loses_its_stream_when_the_lease_ran_out(rig: HubRig) -> None:
    device = await rig.enrol("pi")
    await device.connect()
    assert (await device.read()).reject.reason == device_pb2.Reject.REASON_SHUTTING_DOWN
    assert (await rig.statuses())["pi"].state == "DOWN"
    await device.cut()


async def test_new_connection_replaces_the_old_one(rig: HubRig) -> None:
    device = await rig.enrol("pi")
    await device.connect()
    old_call, old_channel = device.call, device.channel
    assert (await device.connect()).welcome.epoch == 2
    old_last = await old_call.read()
    assert old_last.reject.reason == device_pb2.Reject.REASON_REPLACED
    assert await old_call.read() is grpc.aio.EOF
    await old_channel.close()
    assert (await rig.statuses())["pi"].state == "READY"
    await device.cut()


async def test_frame_of_another_epoch_ends_the_stream(rig: HubRig) -> None:
    device = await rig.enrol("pi")
    await device.connect()
    device.epoch = 77
    await device.write(heartbeat=device_pb2.Heartbeat())
    assert (await device.read()).reject.reason == device_pb2.Reject.REASON_BAD_FRAME
    await rig.state_becomes("pi", "SUSPECT")
    await device.cut()


async def test_left_over_requests_of_an_earlier_life_are_cancelled(rig: HubRig) -> None:
    device = await rig.enrol("pi")
    device.running = ["old"]
    await device.connect()
    assert (await device.read_command()).cancel.request_id == "old"
    await device.cut()


async def test_agent_without_a_common_protocol_is_told_the_versions(rig: HubRig) -> None:
    device = await rig.enrol("pi")
    async with rig.channel(*device._keys) as channel:
        call = device_pb2_grpc.DeviceLinkStub(channel).Connect()
        hello = device_pb2.Hello(min_protocol=8, max_protocol=9)
        await call.write(device_pb2.DeviceFrame(hello=hello))
        reject = (await call.read()).reject
    assert reject.reason == device_pb2.Reject.REASON_PROTOCOL
    assert "8 to 9" in reject.message


async def test_stream_that_does_not_start_with_hello_is_refused(rig: HubRig) -> None:
    device = await rig.enrol("pi")
    async with rig.channel(*device._keys) as channel:
        call = device_pb2_grpc.DeviceLinkStub(channel).Connect()
        await call.write(device_pb2.DeviceFrame(heartbeat=device_pb2.Heartbeat()))
        assert (await call.read()).reject.reason == device_pb2.Reject.REASON_BAD_FRAME


async def test_unknown_device_class_is_refused_by_name(rig: HubRig) -> None:
    device = await rig.enrol("pi")
    device.device_class = "toaster"
    reject = (await device.connect()).reject
    assert reject.reason == device_pb2.Reject.REASON_BAD_FRAME
    assert "toaster" in reject.message
    await device.cut()


async def test_drained_device_takes_nothing_new_and_leaves(rig: HubRig) -> None:
    device = await rig.enrol("pi")
    await device.connect()
    gateway = ScriptedGateway(rig)
    stub = fleet_pb2_grpc.FleetStub(gateway.channel)
    reply = await stub.DrainDevice(fleet_pb2.DeviceRequest(device="pi"), timeout=10)
    assert (reply.device_id, reply.state) == (device.device_id, "DRAINING")
    assert (await device.read()).WhichOneof("frame") == "drain"
    await gateway.submit("r1")
    assert (await gateway.next()).failed.reason == inference_pb2.FAILURE_REASON_NO_DEVICE
    await device.write(goodbye=device_pb2.Goodbye(reason="drained"))
    await rig.state_becomes("pi", "LEFT")
    await gateway.close()
    await device.cut()


async def test_removed_device_is_cut_off_and_never_welcomed_again(rig: HubRig) -> None:
    device = await rig.enrol("pi")
    await device.connect()
    async with rig.gateway_channel() as channel:
        stub = fleet_pb2_grpc.FleetStub(channel)
        request = fleet_pb2.DeviceRequest(device=device.device_id)
        assert (await stub.RemoveDevice(request, timeout=10)).state == "REVOKED"
    assert (await device.read()).reject.reason == device_pb2.Reject.REASON_REVOKED
    await device.cut()
    assert (await device.connect()).reject.reason == device_pb2.Reject.REASON_REVOKED
    assert await rig.statuses() == {}
    await device.cut()


async def test_device_that_never_enrolled_is_unknown(rig: HubRig) -> None:
    device = await rig.enrol("pi")
    await rig._client.flushall()
    assert (await device.connect()).reject.reason == device_pb2.Reject.REASON_UNKNOWN_DEVICE
    await device.cut()


async def test_certificate_of_one_role_opens_only_its_services(rig: HubRig) -> None:
    device = await rig.enrol("pi")
    denied = grpc.StatusCode.PERMISSION_DENIED
    async with rig.channel(*device._keys) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as as_device:
            await fleet_pb2_grpc.FleetStub(channel).ListDevices(fleet_pb2.ListDevicesRequest())
        assert as_device.value.code() == denied
        session = inference_pb2_grpc.InferenceStub(channel).Session()
        assert await session.code() == denied
    async with rig.gateway_channel() as channel:
        link = device_pb2_grpc.DeviceLinkStub(channel).Connect()
        assert await link.code() == denied


async def test_caller_without_a_certificate_does_not_get_in(rig: HubRig) -> None:
    credentials = grpc.ssl_channel_credentials(rig.authority.ca_pem.encode())
    options = [("grpc.ssl_target_name_override", "shoal-hub")]
    link = rig.hub.addresses.link
    async with grpc.aio.secure_channel(link, credentials, options=options) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await fleet_pb2_grpc.FleetStub(channel).ListDevices(
                fleet_pb2.ListDevicesRequest(), timeout=10
            )
    assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_summary_comes_at_once_and_with_each_change(rig: HubRig) -> None:
    async with rig.gateway_channel() as channel:
        watch = fleet_pb2_grpc.FleetStub(channel).WatchSummary(
            fleet_pb2.WatchSummaryRequest(), timeout=20
        )
        assert (await watch.read()).ready_devices == 0
        device = await rig.enrol("pi")
        await device.connect()
        summary = await watch.read()
        assert summary.ready_devices == 1
        assert [(m.name, m.free_slots) for m in summary.models] == [(MODEL, 4)]
        report = model_report()
        report.state = engine_pb2.MODEL_STATE_FAILED
        await device.write(model=report)
        assert list((await watch.read()).models) == []
        await device.cut()


async def test_restarted_hub_has_the_same_ports_and_takes_its_devices_back(
    tmp_path: Path, redis_url: str
) -> None:
    ports = {"link_port": free_port(), "enrol_port": free_port()}
    async with running_hub(tmp_path, redis_url, **ports) as rig:
        device = await rig.enrol("phoenix")
        await device.connect()
        await rig.state_becomes("phoenix", "READY")
    async with running_hub(tmp_path, redis_url, **ports) as again:
        assert again.hub.addresses == rig.hub.addresses
        assert (await again.statuses())["phoenix"].state == "SUSPECT"
        await device.cut()
        assert (await device.connect()).welcome.epoch == 2
        assert (await again.statuses())["phoenix"].state == "READY"
        await device.cut()
        entry = await again.registry.get(DeviceId(device.device_id))
        assert entry is not None
        assert entry.epoch == 2
