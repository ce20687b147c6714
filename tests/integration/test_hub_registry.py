"""One contract, run on each registry; Redis is a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from orchestrator.fleet.registry import DeviceEntry, NameTaken, Registry
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
    await registry.record_state(PI.device_id, DeviceState.READY, 9, "arm_cpu")
    await registry.record_state(PI.device_id, DeviceState.DOWN, 12, "")
    entry = await registry.get(PI.device_id)
    assert entry == replace(
        PI, state=DeviceState.DOWN, last_seen_unix_ms=12, device_class="arm_cpu"
    )


async def test_epochs_only_grow(registry: Registry) -> None:
    await registry.add(PI)
    assert [await registry.next_epoch(PI.device_id) for _ in range(3)] == [1, 2, 3]


async def test_revoked_device_frees_its_name_and_never_revives(registry: Registry) -> None:
    await registry.add(PI)
    await registry.revoke(PI.device_id)
    await registry.revoke(PI.device_id)
    await registry.record_state(PI.device_id, DeviceState.READY, 9, "arm_cpu")
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
    await registry.record_state(DeviceId("x"), DeviceState.READY, 1, "gpu")
    await registry.revoke(DeviceId("x"))
    assert await registry.list() == []
