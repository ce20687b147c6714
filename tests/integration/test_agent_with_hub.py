"""Real agent processes at a real hub: the whole edge without Ray and without a model."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from agent.rpc.enrol import renew
from agent.rpc.identity import IdentityStore
from shoal.v1 import fleet_pb2, fleet_pb2_grpc
from shoal.v1 import inference_pb2 as inf
from tests.harness.agent_process import AgentProcess
from tests.harness.edge import Edge, running_edge
from tests.harness.hub_rig import ScriptedGateway
from tests.harness.redis_server import running_redis

MODEL = "tiny-1m"


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture
async def edge(tmp_path: Path, redis_url: str) -> AsyncIterator[Edge]:
    settings = {"heartbeat_interval_ms": 200, "lease_ms": 2_000, "tick_ms": 50}
    async with running_edge(tmp_path, redis_url, **settings) as edge:
        yield edge


async def last_update(gateway: ScriptedGateway, request_id: str) -> inf.SequenceUpdate:
    while True:
        update = await gateway.next()
        if update.request_id == request_id and (
            update.HasField("finished") or update.HasField("failed")
        ):
            return update


async def test_request_travels_from_gateway_to_engine_and_back(edge: Edge) -> None:
    await edge.start("pi", await edge.token())
    await edge.until_serving("pi")
    gateway = ScriptedGateway(edge.rig)
    await gateway.submit("r1", model=MODEL, text="echo one two")
    assert (await gateway.next()).placed.device_name == "pi"
    last = await last_update(gateway, "r1")
    assert last.finished.usage.completion_tokens == 2
    await gateway.close()


async def test_crashed_engine_fails_over_to_the_other_device(edge: Edge) -> None:
    agents = [await edge.start(name, await edge.token()) for name in ("a", "b")]
    for name in ("a", "b"):
        await edge.until_serving(name)
    gateway = ScriptedGateway(edge.rig)
    await gateway.submit("held", model=MODEL, text="hold")
    first = (await gateway.next()).placed.device_name
    assert (await gateway.next()).HasField("admitted")
    agent = agents[("a", "b").index(first)]
    (engine,) = psutil.Process(agent.pid).children()
    engine.send_signal(signal.SIGKILL)
    while not (update := await gateway.next()).HasField("placed"):
        assert not update.HasField("failed"), update.failed.message
    assert update.placed.device_name != first
    assert update.placed.attempt == 2
    await edge.until_serving(first)
    await gateway.close()


async def test_killed_agent_returns_without_a_token_and_appears_once(edge: Edge) -> None:
    agent = await edge.start("pi", await edge.token())
    await edge.until_serving("pi")
    await agent.kill()
    await edge.rig.state_becomes("pi", "SUSPECT")
    await edge.start("pi")
    await edge.until_serving("pi")
    assert list(await edge.rig.statuses()) == ["pi"]


async def test_certificate_is_renewed_by_the_hub_for_the_same_key(edge: Edge) -> None:
    await edge.start("pi", await edge.token())
    await edge.until_serving("pi")
    identity = IdentityStore(edge.folder / "pi").load()
    assert identity is not None
    renewed = await renew(identity)
    assert renewed.certificate_pem != identity.certificate_pem
    assert renewed.key_pem == identity.key_pem


async def test_drained_device_says_goodbye_and_leaves(edge: Edge) -> None:
    agent = await edge.start("pi", await edge.token())
    await edge.until_serving("pi")
    async with edge.rig.gateway_channel() as channel:
        stub = fleet_pb2_grpc.FleetStub(channel)
        await stub.DrainDevice(fleet_pb2.DeviceRequest(device="pi"), timeout=10)
    assert await agent.wait() == 0
    await edge.rig.state_becomes("pi", "LEFT")


async def test_removed_device_ends_with_its_exit_code(edge: Edge) -> None:
    agent = await edge.start("pi", await edge.token())
    await edge.until_serving("pi")
    async with edge.rig.gateway_channel() as channel:
        stub = fleet_pb2_grpc.FleetStub(channel)
        await stub.RemoveDevice(fleet_pb2.DeviceRequest(device="pi"), timeout=10)
    assert await agent.wait() == 20


async def test_used_token_and_taken_name_have_their_exit_codes(edge: Edge) -> None:
    token = await edge.token()
    await edge.start("pi", token)
    await edge.until_serving("pi")
    assert await (await edge.start("other", token)).wait() == 12
    second = AgentProcess.start(
        [
            *("--home", str(edge.folder / "third"), "--name", "pi", "--join", edge.url),
            *("--token", await edge.token()),
        ]
    )
    assert await (await second).wait() == 15
