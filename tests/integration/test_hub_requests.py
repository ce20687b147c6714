"""Requests through a real hub: placement, relay, failover, cancel, records."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from orchestrator.config import HealthTerms
from orchestrator.fleet.decisions_redis import DecisionStore
from orchestrator.fleet.registry_redis import connect
from shoal.v1 import inference_pb2
from tests.harness.hub_rig import (
    MODEL,
    HubRig,
    ScriptedDevice,
    ScriptedGateway,
    delta,
    failed,
    finished,
    model_report,
    running_hub,
)
from tests.harness.redis_server import paused_redis, running_redis

QUICK = HealthTerms(unproven_floor_ms=1_500.0, first_token_floor_ms=1_500.0)


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture
async def rig(tmp_path: Path, redis_url: str) -> AsyncIterator[HubRig]:
    client = connect(redis_url)
    await client.flushall()
    await client.aclose()
    async with running_hub(tmp_path, redis_url, health=QUICK, tick_ms=50) as rig:
        yield rig


@pytest.fixture
async def device(rig: HubRig) -> AsyncIterator[ScriptedDevice]:
    device = await rig.enrol("pi")
    await device.connect()
    yield device
    await device.cut()


@pytest.fixture
async def gateway(rig: HubRig) -> AsyncIterator[ScriptedGateway]:
    gateway = ScriptedGateway(rig)
    yield gateway
    await gateway.close()


async def stored_record(redis_url: str, request_id: str) -> dict[str, object]:
    client = connect(redis_url)
    store = DecisionStore(client)
    try:
        async with asyncio.timeout(10):
            while (text := await store.get(request_id)) is None:  # noqa: ASYNC110 - in Redis
                await asyncio.sleep(0.02)
    finally:
        await client.aclose()
    record: dict[str, object] = json.loads(text)
    return record


async def test_request_is_placed_streamed_and_recorded(
    rig: HubRig, device: ScriptedDevice, gateway: ScriptedGateway, redis_url: str
) -> None:
    await gateway.submit("r1", max_tokens=2)
    command = await device.read_command()
    assert command.submit.request_id == "r1"
    assert command.submit.text == "Hello there"
    placed = (await gateway.next()).placed
    assert (placed.device_id, placed.device_name) == (device.device_id, "pi")
    assert placed.attempt == 1
    assert placed.predicted_ttft_ms > 0
    assert placed.reason
    assert (await rig.statuses())["pi"].in_flight == 1
    admitted = inference_pb2.SequenceUpdate(
        request_id="r1", admitted=inference_pb2.Admitted(prompt_tokens=3)
    )
    last = finished("r1")
    last.delta.text = " sea"
    await device.send(admitted)
    await device.send(delta("r1", "The"))
    await device.send(last)
    assert (await gateway.next()).admitted.prompt_tokens == 3
    assert (await gateway.next()).delta.text == "The"
    end = await gateway.next()
    assert end.delta.text == " sea"
    assert end.finished.usage.completion_tokens == 2
    record = await stored_record(redis_url, "r1")
    assert record["outcome"] == "finished"
    assert record["actual"]["ttft_ms"] == 30  # type: ignore[index]
    assert record["candidates"][0]["prediction"]["ttft_ms"] > 0  # type: ignore[index]
    assert record["attempts"][0]["device_name"] == "pi"  # type: ignore[index]
    assert (await rig.statuses())["pi"].in_flight == 0


async def test_unknown_model_is_refused_with_the_reason(
    device: ScriptedDevice, gateway: ScriptedGateway, redis_url: str
) -> None:
    await gateway.submit("r2", model="nothing")
    update = await gateway.next()
    assert update.failed.reason == inference_pb2.FAILURE_REASON_MODEL_NOT_FOUND
    assert (await stored_record(redis_url, "r2"))["outcome"] == "model_not_found"


async def test_request_without_a_prompt_names_the_parameter(
    device: ScriptedDevice, gateway: ScriptedGateway
) -> None:
    request = inference_pb2.GenerateRequest(request_id="r3", model=MODEL)
    await gateway.call.write(inference_pb2.InferenceCommand(submit=request))
    update = await gateway.next()
    assert update.failed.reason == inference_pb2.FAILURE_REASON_INVALID_ARGUMENT
    assert update.failed.param == "prompt"


async def test_request_moves_to_another_device_when_its_device_is_cut_off_before_a_token(
    rig: HubRig, device: ScriptedDevice, gateway: ScriptedGateway, redis_url: str
) -> None:
    await gateway.submit("r4")
    await device.read_command()
    assert (await gateway.next()).placed.device_name == "pi"
    other = await rig.enrol("other")
    await other.connect()
    await device.cut()
    assert (await other.read_command()).submit.request_id == "r4"
    placed = (await gateway.next()).placed
    assert (placed.device_name, placed.attempt) == ("other", 2)
    await other.send(delta("r4", "x"))
    await other.send(finished("r4"))
    assert (await gateway.next()).delta.text == "x"
    assert (await gateway.next()).HasField("finished")
    record = await stored_record(redis_url, "r4")
    attempts = record["attempts"]
    assert [a["failed"] for a in attempts] == ["device_lost", ""]  # type: ignore[attr-defined]
    await other.cut()


async def test_request_fails_clearly_when_its_device_is_cut_off_after_a_token(
    rig: HubRig, device: ScriptedDevice, gateway: ScriptedGateway
) -> None:
    await gateway.submit("r5")
    await device.read_command()
    await device.send(delta("r5", "x"))
    assert (await gateway.next()).HasField("placed")
    assert (await gateway.next()).delta.text == "x"
    await device.cut()
    assert (await gateway.next()).failed.reason == inference_pb2.FAILURE_REASON_DEVICE_LOST
    await gateway.submit("r6")
    refused = (await gateway.next()).failed
    assert refused.reason == inference_pb2.FAILURE_REASON_NO_DEVICE


async def test_refused_request_goes_to_the_next_candidate(
    rig: HubRig, device: ScriptedDevice, gateway: ScriptedGateway
) -> None:
    other = await rig.enrol("other")
    await other.connect()
    await gateway.submit("r7")
    first = (await gateway.next()).placed.device_name
    by_name = {"pi": device, "other": other}
    second = by_name.pop("other" if first == "pi" else "pi")
    refuser = by_name[first]
    await refuser.read_command()
    await refuser.send(failed("r7", inference_pb2.FAILURE_REASON_OVERLOADED, "full"))
    assert (await second.read_command()).submit.request_id == "r7"
    assert (await gateway.next()).placed.attempt == 2
    await other.cut()


async def test_last_refusal_is_told_when_no_other_device_is_left(
    device: ScriptedDevice, gateway: ScriptedGateway
) -> None:
    await gateway.submit("r8")
    await device.read_command()
    await device.send(failed("r8", inference_pb2.FAILURE_REASON_ENGINE_CRASHED, "SIGSEGV"))
    assert (await gateway.next()).HasField("placed")
    update = await gateway.next()
    assert update.failed.reason == inference_pb2.FAILURE_REASON_ENGINE_CRASHED
    assert update.failed.message == "SIGSEGV"


async def test_cancel_reaches_the_device_and_late_frames_are_dropped(
    rig: HubRig, device: ScriptedDevice, gateway: ScriptedGateway, redis_url: str
) -> None:
    await gateway.submit("r9")
    await device.read_command()
    await gateway.cancel("r9")
    assert (await device.read_command()).cancel.request_id == "r9"
    await device.send(delta("r9", "late"))
    await gateway.submit("r10")
    await device.read_command()
    await device.send(delta("r10", "on time"))
    assert (await gateway.next()).request_id == "r9"
    assert (await gateway.next()).placed
    assert (await gateway.next()).delta.text == "on time"
    assert (await stored_record(redis_url, "r9"))["outcome"] == "cancelled"


async def test_vanished_gateway_cancels_its_requests_on_the_device(
    rig: HubRig, device: ScriptedDevice, gateway: ScriptedGateway
) -> None:
    await gateway.submit("r11")
    await device.read_command()
    await gateway.close()
    assert (await device.read_command()).cancel.request_id == "r11"


async def test_frame_of_many_requests_becomes_one_frame_for_each_gateway(
    rig: HubRig, device: ScriptedDevice, gateway: ScriptedGateway
) -> None:
    second = ScriptedGateway(rig)
    for i in range(3):
        await gateway.submit(f"a{i}")
        await device.read_command()
        assert (await gateway.next()).HasField("placed")
    await second.submit("b0")
    await device.read_command()
    assert (await second.next()).HasField("placed")
    frames_before = gateway.num_frames
    await device.send(*(delta(i, "x") for i in ("a0", "b0", "a1", "a2", "nobody")))
    assert [(await gateway.next()).request_id for _ in range(3)] == ["a0", "a1", "a2"]
    assert gateway.num_frames == frames_before + 1
    assert (await second.next()).request_id == "b0"
    await second.close()


async def test_device_without_progress_is_suspected_and_its_request_moved(
    rig: HubRig, device: ScriptedDevice, gateway: ScriptedGateway
) -> None:
    await gateway.submit("r12")
    await device.read_command()
    assert (await gateway.next()).placed.device_name == "pi"
    other = await rig.enrol("other")
    await other.connect()
    probe = (await device.read_command()).submit
    assert probe.request_id.startswith("shoal-probe")
    assert (await device.read_command()).cancel.request_id == "r12"
    assert (await gateway.next()).placed.device_name == "other"
    status = (await rig.statuses())["pi"]
    assert status.state == "SUSPECT"
    assert status.models[0].condition.startswith("suspect: no token for ")
    await device.send(delta(probe.request_id, "x"), finished(probe.request_id))
    await rig.state_becomes("pi", "READY")
    assert (await rig.statuses())["pi"].models[0].condition == ""
    await other.cut()


async def test_request_past_its_deadline_ends(
    device: ScriptedDevice, gateway: ScriptedGateway
) -> None:
    await gateway.submit("r13", deadline_unix_ms=1)
    await device.read_command()
    assert (await gateway.next()).HasField("placed")
    assert (await gateway.next()).failed.reason == inference_pb2.FAILURE_REASON_DEADLINE_EXCEEDED
    assert (await device.read_command()).cancel.request_id == "r13"


async def test_requests_wait_for_a_full_device_and_go_on_when_it_has_room(
    tmp_path: Path, redis_url: str
) -> None:
    async with running_hub(tmp_path, redis_url, device_waiting_share=0, max_queued=2) as rig:
        device = await rig.enrol("tiny")
        device.models = [model_report(slots=1)]
        await device.connect()
        gateway = ScriptedGateway(rig)
        for name in ("a", "b", "gone", "d"):
            await gateway.submit(name)
        assert (await device.read_command()).submit.request_id == "a"
        assert (await gateway.next()).HasField("placed")
        refused = await gateway.next()
        assert refused.request_id == "d"
        assert refused.failed.reason == inference_pb2.FAILURE_REASON_OVERLOADED
        assert refused.failed.retry_after_ms > 0
        await gateway.cancel("gone")
        await gateway.submit("last")
        for name, following in (("a", "b"), ("b", "last")):
            await device.send(delta(name, "x"), finished(name))
            assert (await device.read_command()).submit.request_id == following
        placed = {}
        while "last" not in placed:
            update = await gateway.next()
            if update.HasField("placed"):
                placed[update.request_id] = update.placed.queue_ms
        assert placed["b"] > 0
        assert placed["last"] > 0
        await device.send(delta("last", "x"), finished("last"))
        while not (await gateway.next()).HasField("finished"):
            pass
        assert (await stored_record(redis_url, "last"))["queue_ms"] > 0
        await gateway.close()
        await device.cut()


async def test_gateway_that_does_not_read_loses_its_session_and_delays_nobody(
    tmp_path: Path, redis_url: str
) -> None:
    async with running_hub(tmp_path, redis_url, session_queue_frames=32) as rig:
        device = await rig.enrol("busy")
        await device.connect()
        slow, quick = ScriptedGateway(rig), ScriptedGateway(rig)
        await slow.submit("slow")
        await device.read_command()
        await quick.submit("quick")
        await device.read_command()
        text = "x" * 65_536
        ended = asyncio.create_task(device.read_command())
        while not ended.done():
            await device.send(delta("slow", text))
            await device.send(delta("quick", "y"))
        assert ended.result().cancel.request_id == "slow"
        assert (await quick.next()).HasField("placed")
        assert (await quick.next()).delta.text == "y"
        await slow.close()
        await quick.close()
        await device.cut()


async def test_requests_are_served_while_redis_is_away_and_recorded_when_it_is_back(
    tmp_path: Path,
) -> None:
    with running_redis() as url:
        async with running_hub(tmp_path, url) as rig:
            device = await rig.enrol("pi")
            await device.connect()
            gateway = ScriptedGateway(rig)
            with paused_redis(url):
                await gateway.submit("r1")
                await device.read_command()
                await device.send(finished("r1"))
                assert (await gateway.next()).HasField("placed")
                assert (await gateway.next()).HasField("finished")
            assert (await stored_record(url, "r1"))["outcome"] == "finished"
            await gateway.close()
            await device.cut()
