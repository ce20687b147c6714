"""One contract, run on each registry; Redis is a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from orchestrator.fleet.registry import (
    Change,
    ChangeKind,
    DeviceEntry,
    NameTaken,
    Registry,
    StateReport,
)
from orchestrator.fleet.registry_memory import MemoryRegistry
from orchestrator.fleet.registry_redis import RedisRegistry, connect
from orchestrator.fleet.view import DeviceId, DeviceState
from tests.harness.redis_server import running_redis

PI = DeviceEntry(DeviceId("d1"), "pi", cert_serial="01", enrolled_unix_ms=5)


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture(params=["memory", "redis"])
async def registry(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[Registry]:
    if request.param == "memory":
        yield MemoryRegistry()
        return
    client = connect(redis_url)
    await client.flushall()
    yield RedisRegistry(client)
    await client.aclose()


async def test_added_device_is_found_by_id_and_name(registry: Registry) -> None:
    await registry.add(PI)
    assert await registry.get(PI.device_id) == PI
    assert await registry.find_by_name("pi") == PI
    assert await registry.list() == [PI]


async def test_unknown_device_is_none(registry: Registry) -> None:
    assert await registry.get(DeviceId("nobody")) is None
    assert await registry.find_by_name("nobody") is None
    assert await registry.list() == []


async def test_name_of_another_live_device_is_refused(registry: Registry) -> None:
    await registry.add(PI)
    with pytest.raises(NameTaken) as refusal:
        await registry.add(replace(PI, device_id=DeviceId("d2")))
    assert refusal.value.holder == "d1"
    assert await registry.get(DeviceId("d2")) is None


async def test_state_is_recorded_and_class_kept_when_empty(registry: Registry) -> None:
    await registry.add(PI)
    await registry.record_states(
        [
            StateReport(PI.device_id, DeviceState.READY, 0, 9, "arm_cpu"),
            StateReport(PI.device_id, DeviceState.DOWN, 0, 12),
        ]
    )
    entry = await registry.get(PI.device_id)
    assert entry == replace(
        PI, state=DeviceState.DOWN, last_seen_unix_ms=12, device_class="arm_cpu"
    )


async def test_epochs_only_grow(registry: Registry) -> None:
    await registry.add(PI)
    hubs = ["h1", "h2", "h1"]
    assert [await registry.connect(PI.device_id, hub, 0) for hub in hubs] == [1, 2, 3]
    entry = await registry.get(PI.device_id)
    assert entry is not None
    assert (entry.epoch, entry.hub) == (3, "h1")


async def test_epoch_that_the_device_remembers_is_passed(registry: Registry) -> None:
    await registry.add(PI)
    assert await registry.connect(PI.device_id, "h1", 1_000_000) == 1_000_001
    assert await registry.connect(PI.device_id, "h2", 0) == 1_000_002


async def test_state_of_an_older_connection_is_not_recorded(registry: Registry) -> None:
    await registry.add(PI)
    old = await registry.connect(PI.device_id, "h1", 0)
    new = await registry.connect(PI.device_id, "h2", 0)
    await registry.record_states([StateReport(PI.device_id, DeviceState.READY, new, 9)])
    await registry.record_states([StateReport(PI.device_id, DeviceState.DOWN, old, 12)])
    entry = await registry.get(PI.device_id)
    assert entry is not None
    assert (entry.state, entry.last_seen_unix_ms) == (DeviceState.READY, 9)


async def test_changes_are_told_in_order_from_where_one_left_off(registry: Registry) -> None:
    await registry.add(PI)
    await registry.connect(PI.device_id, "h1", 0)
    start = await registry.last_change()
    assert await registry.changes(start, 1) == ([], start)
    await registry.connect(PI.device_id, "h2", 0)
    await registry.drain(PI.device_id)
    changes, end = await registry.changes(start, 1_000)
    await registry.revoke(PI.device_id)
    assert changes == [
        Change(ChangeKind.CONNECTED, PI.device_id, 2, "h2"),
        Change(ChangeKind.DRAIN, PI.device_id),
    ]
    changes, _ = await registry.changes(end, 1_000)
    assert changes == [Change(ChangeKind.REVOKED, PI.device_id)]


async def test_revoked_device_frees_its_name_and_never_revives(registry: Registry) -> None:
    await registry.add(PI)
    await registry.revoke(PI.device_id)
    await registry.revoke(PI.device_id)
    await registry.record_states([StateReport(PI.device_id, DeviceState.READY, 0, 9, "arm_cpu")])
    await registry.record_certificate(PI.device_id, "02")
    entry = await registry.get(PI.device_id)
    assert entry == replace(PI, revoked=True, state=DeviceState.REVOKED)
    assert await registry.find_by_name("pi") is None
    newcomer = replace(PI, device_id=DeviceId("d2"))
    await registry.add(newcomer)
    assert await registry.find_by_name("pi") == newcomer


async def test_renewed_certificate_is_recorded(registry: Registry) -> None:
    await registry.add(PI)
    await registry.record_certificate(PI.device_id, "02")
    entry = await registry.get(PI.device_id)
    assert entry is not None
    assert entry.cert_serial == "02"


async def test_changes_to_unknown_devices_leave_nothing(registry: Registry) -> None:
    await registry.record_states([StateReport(DeviceId("x"), DeviceState.READY, 0, 1, "gpu")])
    await registry.revoke(DeviceId("x"))
    assert await registry.list() == []
