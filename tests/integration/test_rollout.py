"""A rollout over a real hub and Redis with scripted devices; a hub that is replaced goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.fleet.registry_redis import connect
from orchestrator.fleet.view import DeviceId
from orchestrator.rollout.model import Outcome, Phase, Rollout, Target
from orchestrator.rollout.store_redis import RolloutStore
from shoal.v1 import device_pb2
from tests.harness.hub_rig import DEADLINE_S, ScriptedDevice, finished, running_hub
from tests.harness.redis_server import running_redis

RELEASE = "2-abc"


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


async def frame_of(device: ScriptedDevice, kind: str) -> device_pb2.HubFrame:
    while (frame := await device.read()).WhichOneof("frame") != kind:
        pass
    return frame


async def outcome(store: RolloutStore) -> Outcome:
    async with asyncio.timeout(2 * DEADLINE_S):
        while True:
            rollout = await store.last()
            assert rollout is not None
            if rollout.outcome is not Outcome.RUNNING:
                return rollout.outcome
            await asyncio.sleep(0.05)


def begin(*devices: ScriptedDevice) -> tuple[Rollout, list[Target]]:
    now = time.time_ns() // 10**6
    rollout = Rollout("r1", "2", RELEASE, (("w.whl", "ff"),), 1, 0, 30, 30, now)
    return rollout, [Target(DeviceId(d.device_id), d.name, i) for i, d in enumerate(devices)]


async def test_rollout_goes_on_after_its_hub_was_replaced(tmp_path: Path, redis_url: str) -> None:
    client = connect(redis_url)
    store = RolloutStore(client)
    async with running_hub(tmp_path, redis_url) as rig:
        good, bad, third = [await rig.enrol(name) for name in ("good", "bad", "third")]
        for device in (good, bad, third):
            device.installation.release = "1-old"
            await device.connect()
        rollout, targets = begin(good, bad, third)
        assert await store.begin(rollout, targets)
        assert not await store.begin(rollout, targets)
        order = (await frame_of(good, "upgrade")).upgrade
        assert (order.version, order.files[0].sha256) == ("2", "ff")
        await good.write(upgrade_progress=progress("draining"))
        await rig.state_becomes("good", "DRAINING")
    async with running_hub(tmp_path, redis_url) as rig:
        for device in (good, bad, third):
            await device.cut()
        good.installation.release = good.installation.trial = RELEASE
        await good.connect(rig)
        await bad.connect(rig)
        await third.connect(rig)
        # The gate: the model that it served before answers, then it is confirmed.
        command = (await frame_of(good, "inference")).inference
        await good.send(finished(command.submit.request_id))
        verdict = (await frame_of(good, "upgrade_verdict")).upgrade_verdict
        assert (verdict.keep, verdict.release) == (True, RELEASE)
        await good.write(upgrade_progress=progress("kept"))
        await frame_of(bad, "upgrade")
        await bad.cut()
        bad.installation.failed_release, bad.installation.failure = RELEASE, "ended with code 9"
        await bad.connect(rig)
        assert await outcome(store) is Outcome.STOPPED
        await third.cut()
        phases = {
            target.name: (target.phase, target.why) for target in (await store.targets()).values()
        }
        assert phases == {
            "good": (Phase.KEPT, ""),
            "bad": (Phase.ROLLED_BACK, "ended with code 9"),
            "third": (Phase.WAITING, ""),
        }
        await good.cut()
        await bad.cut()
    await client.aclose()


async def test_hub_that_lags_does_not_end_the_rollout_that_came_after(redis_url: str) -> None:
    client = connect(redis_url)
    await client.flushall()
    store = RolloutStore(client)
    first, _ = begin()
    assert await store.begin(first, [])
    assert await store.end(replace(first, outcome=Outcome.DONE))
    second = replace(first, id="r2")
    assert await store.begin(second, [])
    assert not await store.end(replace(first, outcome=Outcome.STOPPED))
    assert await store.running() == second
    await client.aclose()


def progress(phase: str) -> device_pb2.UpgradeProgress:
    return device_pb2.UpgradeProgress(version="2", phase=phase)
