"""The API on a device's own port, with real agent and engine processes."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import AsyncOpenAI, AuthenticationError, BadRequestError, NotFoundError

from shoal.v1 import device_pb2 as pb
from shoal.v1 import inference_pb2 as inf
from shoal.wire import PROTOCOL_VERSION
from tests.harness.agent_hub import Connection, Fleet
from tests.harness.agent_process import AgentProcess

MODEL = "tiny-1m"


class Rig:
    """A scripted hub, an agent with its local API on, and clients of it."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet = fleet
        self.home = folder / "agent"
        self.model = folder / "Tiny-1M.Q4_0.gguf"
        self.model.write_bytes(b"fine")
        self.agents: list[AgentProcess] = []
        self.url = ""

    async def start(self, *more: str) -> AgentProcess:
        agent = await AgentProcess.start(
            [
                *("--home", str(self.home), "--name", "pi", "--join", self.fleet.url),
                *("--token", self.fleet.authority.token(), "--model", str(self.model)),
                *("--local-api", "0", *more),
            ]
        )
        self.agents.append(agent)
        self.url = (await agent.until("local_api_ready"))["url"]
        await agent.until("engine_ready")
        return agent

    @property
    def key(self) -> str:
        return (self.home / "local-api.key").read_text().strip()

    def client(self, key: str = "") -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.url, api_key=key or self.key, max_retries=0)

    async def ask(self, text: str) -> str:
        async with self.client() as client:
            answer = await client.completions.create(model=MODEL, prompt=text)
            return answer.choices[0].text


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    fleet = Fleet()
    await fleet.start()
    rig = Rig(fleet, tmp_path)
    yield rig
    await asyncio.gather(*(agent.stop() for agent in rig.agents))
    await fleet.stop()


def submit(request_id: str, text: str) -> inf.InferenceCommand:
    request = inf.GenerateRequest(request_id=request_id, model=MODEL, text=text)
    return inf.InferenceCommand(submit=request)


async def local_served(connection: Connection) -> pb.LocalServed:
    return (await connection.next("local_served", timeout_s=20)).local_served


async def test_openai_client_is_served_and_told_where(rig: Rig) -> None:
    await rig.start()
    assert stat.S_IMODE((rig.home / "local-api.key").stat().st_mode) == 0o600
    async with rig.client() as client:
        answer = await client.completions.with_raw_response.create(
            model=MODEL, prompt="echo one two"
        )
        assert answer.parse().choices[0].text == "onetwo"
        assert answer.headers["x-shoal-device"] == "pi"
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert [model.id for model in (await client.models.list()).data] == [MODEL]
        with pytest.raises(NotFoundError):
            await client.completions.create(model="other", prompt="x")
        with pytest.raises(BadRequestError, match="the device pi alone"):
            await client.completions.create(
                model=MODEL, prompt="x", extra_body={"shoal": {"device": "other"}}
            )
    async with rig.client("sk-shoal-wrong") as stranger:
        with pytest.raises(AuthenticationError):
            await stranger.models.list()
    async with httpx.AsyncClient() as anyone:
        healthy = await anyone.get(rig.url.removesuffix("/v1") + "/healthz")
        assert healthy.json() == {"status": "ok"}


async def test_agent_with_its_local_api_stays_light(rig: Rig) -> None:
    agent = await rig.start()
    await rig.ask("echo warm")
    assert psutil.Process(agent.pid).memory_info().rss < 100e6


async def test_expired_certificate_ends_the_membership_and_not_the_local_api(rig: Rig) -> None:
    rig.fleet.script.certificate_age = timedelta(hours=2)
    agent = await rig.start()
    assert await rig.ask("echo alone now") == "alonenow"
    assert psutil.pid_exists(agent.pid)


async def test_local_requests_outlive_the_hub_and_are_reported_when_it_returns(rig: Rig) -> None:
    agent = await rig.start()
    connection = await rig.fleet.accept()
    await rig.fleet.stop_link()
    await connection.until_closed()
    async with rig.client() as client:
        stream = await client.completions.create(
            model=MODEL, prompt="pace 100 a b c d e", stream=True
        )
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "abcde"
    assert await rig.ask("echo offline now") == "offlinenow"

    await rig.fleet.start_link()
    connection = await rig.fleet.accept()
    told = await local_served(connection)
    (usage,) = told.usages
    assert (usage.model, usage.finished, usage.without_hub) == (MODEL, 2, 2)
    assert usage.completion_tokens == 7
    assert "offline" not in str(told)

    # Not acknowledged: told again, even by the next process.
    await agent.kill()
    (home_file,) = rig.home.glob("local-served.json")
    assert json.loads(home_file.read_text())["told"]
    await rig.start()
    connection = await rig.fleet.accept()
    again = await local_served(connection)
    assert (again.journal, again.sequence, again.usages[0]) == (told.journal, 1, usage)
    connection.send(local_served_ack=pb.LocalServedAck(journal=told.journal, sequence=1))
    await rig.ask("echo more")
    fresh = await local_served(connection)
    assert (fresh.sequence, fresh.usages[0].finished, fresh.usages[0].without_hub) == (2, 1, 0)


async def test_client_that_goes_away_frees_its_slot(rig: Rig) -> None:
    await rig.start()
    connection = await rig.fleet.accept()
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {rig.key}"}) as client:
        body = {"model": MODEL, "prompt": "pace 600000 first never", "stream": True}
        async with client.stream("POST", f"{rig.url}/completions", json=body) as answer:
            assert "first" in await anext(answer.aiter_lines())

    async with asyncio.timeout(15):
        while True:
            beat = (await connection.next("heartbeat")).heartbeat
            if any(load.counters.get("cancelled") for load in beat.engines):
                break


async def test_engine_crash_is_told_plainly_and_the_next_request_is_served(rig: Rig) -> None:
    agent = await rig.start()

    async def fails() -> dict[str, Any]:
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {rig.key}"}) as client:
            body = {"model": MODEL, "prompt": "die"}
            answer = await client.post(f"{rig.url}/completions", json=body)
            return {"status": answer.status_code, **answer.json()["error"]}

    failure = await fails()
    assert (failure["status"], failure["code"]) == (503, "engine_crashed")
    assert "SIGKILL" in failure["message"]
    await agent.until("engine_ready")
    assert await rig.ask("echo back") == "back"


async def test_port_that_somebody_chose_and_is_taken_ends_the_agent(rig: Rig) -> None:
    await rig.start()
    taken = rig.url.rpartition(":")[2].removesuffix("/v1")
    agent = await AgentProcess.start(
        [
            *("--home", str(rig.home) + "-2", "--name", "pi2", "--join", rig.fleet.url),
            *("--token", rig.fleet.authority.token(), "--model", str(rig.model)),
            *("--local-api", taken),
        ]
    )
    assert await agent.wait() == 2


async def test_without_a_key_web_pages_are_refused(rig: Rig) -> None:
    await rig.start("--no-local-key")
    async with httpx.AsyncClient() as client:
        body = {"model": MODEL, "prompt": "echo open"}
        url = f"{rig.url}/completions"
        assert (await client.post(url, json=body)).status_code == 200
        page = await client.post(url, json=body, headers={"origin": "http://evil.example"})
        assert page.status_code == 403
        rebound = await client.post(url, json=body, headers={"host": "evil.example:8431"})
        assert rebound.status_code == 403


async def test_hub_of_the_protocol_before_is_told_nothing_it_does_not_know(rig: Rig) -> None:
    rig.fleet.script.protocol = PROTOCOL_VERSION - 1
    await rig.start()
    connection = await rig.fleet.accept()
    assert await rig.ask("echo quiet") == "quiet"
    connection.send(inference=submit("r1", "echo served"))
    frames = []
    while not any(update.HasField("finished") for f in frames for update in f.inference.updates):
        frames.append(await connection.next("inference"))
    seen = []
    async with asyncio.timeout(15):
        while not (rig.home / "local-served.json").exists():
            frame = await connection.frames.get()
            seen.append(frame.WhichOneof("frame") if frame else None)
    assert "local_served" not in seen
    assert json.loads((rig.home / "local-served.json").read_text())["next"]
