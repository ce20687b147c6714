"""Real agents and engines that are stopped by SIGSTOP under load."""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import psutil
import pytest
import pytest_asyncio

from orchestrator.config import HealthTerms
from shoal.v1 import inference_pb2 as inf
from tests.harness.edge import Edge, running_edge
from tests.harness.hub_rig import ScriptedGateway
from tests.harness.redis_server import running_redis

# One pair of agents serves all tests here: starting them takes most of the time.
pytestmark = pytest.mark.asyncio(loop_scope="module")
MODEL = "tiny-1m"
TERMS = HealthTerms(
    first_token_floor_ms=700, unproven_floor_ms=700, next_token_floor_ms=700, lost_factor=4
)


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> AsyncIterator[Edge]:
    settings = {"lease_ms": 60_000, "tick_ms": 50, "health": TERMS}
    folder = tmp_path_factory.mktemp("edge")
    async with running_edge(folder, redis_url, **settings) as edge:
        await asyncio.gather(*[edge.start(name, await edge.token()) for name in ("a", "b")])
        await asyncio.gather(*[edge.until_serving(name) for name in ("a", "b")])
        yield edge


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(edge: Edge) -> AsyncIterator[ScriptedGateway]:
    gateway = ScriptedGateway(edge.rig)
    yield gateway
    await gateway.close()


@asynccontextmanager
async def stopped(process: psutil.Process) -> AsyncIterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def agent_of(edge: Edge) -> psutil.Process:
    """The agent that is called `a`."""
    return next(
        process for agent in edge.agents if "a" in (process := psutil.Process(agent.pid)).cmdline()
    )


async def ends(
    gateway: ScriptedGateway, count: int
) -> tuple[dict[str, list[str]], list[inf.SequenceUpdate]]:
    """Where each request was placed, in turn, and the last update of each."""
    placed: dict[str, list[str]] = defaultdict(list)
    last: list[inf.SequenceUpdate] = []
    while len(last) < count:
        update = await gateway.next()
        if update.HasField("placed"):
            placed[update.request_id].append(update.placed.device_name)
        if update.HasField("finished") or update.HasField("failed"):
            last.append(update)
    return placed, last


@pytest.mark.parametrize("victim", ["agent", "engine"])
async def test_requests_of_a_stopped_device_finish_on_the_other_and_it_comes_back(
    edge: Edge, gateway: ScriptedGateway, victim: str
) -> None:
    agent = agent_of(edge)
    async with stopped(agent if victim == "agent" else agent.children()[0]):
        for number in range(8):
            await gateway.submit(f"r{number}", model=MODEL, text="pace 20 one two three")
        placed, last = await ends(gateway, 8)
        assert [update.failed.message for update in last if update.HasField("failed")] == []
        assert ["a", "b"] in placed.values()
        assert {names[-1] for names in placed.values()} == {"b"}
        status = (await edge.rig.statuses())["a"]
        assert status.state == "SUSPECT"
        assert status.models[0].condition.startswith("suspect: no token for ")
    await edge.rig.state_becomes("a", "READY")
    await gateway.submit("after", model=MODEL, text="echo x", hints=inf.RoutingHints(device="a"))
    _, (last_of_after,) = await ends(gateway, 1)
    assert last_of_after.HasField("finished")


async def test_stream_goes_on_when_its_engine_does(edge: Edge, gateway: ScriptedGateway) -> None:
    words = " ".join(str(number) for number in range(20))
    hints = inf.RoutingHints(device="a")
    await gateway.submit("r", model=MODEL, text=f"pace 50 {words}", hints=hints)
    while not (await gateway.next()).HasField("delta"):
        pass
    async with stopped(agent_of(edge).children()[0]):
        await edge.rig.state_becomes("a", "SUSPECT")
    _, (last,) = await ends(gateway, 1)
    assert last.finished.usage.completion_tokens == 20
    await edge.rig.state_becomes("a", "READY")
