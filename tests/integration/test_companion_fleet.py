"""A companion server behind the whole edge: hub, agent process, companion process, server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from shoal.v1 import inference_pb2 as inf
from tests.harness.agent_process import AgentProcess
from tests.harness.edge import Edge, running_edge
from tests.harness.gateway_rig import running_gateway
from tests.harness.hub_rig import ScriptedGateway
from tests.harness.ports import free_port
from tests.harness.redis_server import running_redis

MODEL = "tiny-1m"
SERVER = Path(__file__).parents[1] / "harness" / "companion_server.py"


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture
async def edge(tmp_path: Path, redis_url: str) -> AsyncIterator[Edge]:
    settings = {"heartbeat_interval_ms": 200, "lease_ms": 2_000, "tick_ms": 50}
    async with running_edge(tmp_path, redis_url, **settings) as edge:
        yield edge


class Companion:
    """An agent whose only model is served by the test's companion server."""

    def __init__(self, edge: Edge, name: str) -> None:
        self.edge, self.name, self.port = edge, name, free_port()

    def described(self, *flags: str) -> str:
        """As an owner would write it; a shell between, as in many start scripts."""
        command = f"{' '.join((sys.executable, str(SERVER), *flags))} --port {self.port}; exit $?"
        file = self.edge.folder / f"{self.name}.toml"
        file.write_text(
            f'[[companion]]\nname = "{MODEL}"\nmodel = "{MODEL}"\nclass = "npu"\n'
            f'url = "http://127.0.0.1:{self.port}/v1"\nslots = 2\ncontext_tokens = 512\n'
            f"command = {json.dumps(['/bin/sh', '-c', command])}\n"
        )
        return str(file)

    async def start(self, companion: str) -> AgentProcess:
        arguments = ["--home", str(self.edge.folder / self.name), "--name", self.name]
        arguments += ["--join", self.edge.url, "--token", await self.edge.token()]
        arguments += ["--companion", companion, "--grace-s", "0"]
        agent = await AgentProcess.start(arguments, real_engine=True)
        self.edge.agents.append(agent)
        await self.edge.until_serving(self.name)
        return agent

    def stats(self) -> dict[str, Any]:
        return dict(httpx.get(f"http://127.0.0.1:{self.port}/stats", trust_env=False).json())

    def server_pids(self) -> list[int]:
        return [
            process.pid
            for process in psutil.process_iter(["cmdline"])
            if (line := process.info["cmdline"] or [])[1:2] == [str(SERVER)]
            and line[-1] == str(self.port)
        ]

    async def until_another_runs(self, than: int) -> int:
        """The process id of the server that was started in another's place."""
        async with asyncio.timeout(20):
            while than in (pids := self.server_pids()) or not pids:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return pids[0]

    async def until(self, condition: str, value: int) -> None:
        async with asyncio.timeout(15):
            while self.stats()[condition] != value:  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.02)


async def answer(gateway: ScriptedGateway, request_id: str) -> tuple[str, inf.SequenceUpdate]:
    text = ""
    while True:
        update = await gateway.next()
        if update.request_id != request_id:
            continue
        text += update.delta.text
        if update.HasField("finished") or update.HasField("failed"):
            return text, update


async def test_companion_serves_cancels_and_refuses_by_the_contract(edge: Edge) -> None:
    companion = Companion(edge, "npu-box")
    agent = await companion.start(companion.described())
    status = (await edge.rig.statuses())["npu-box"]
    assert status.capabilities.device_class == "npu"
    assert status.capabilities.emulated
    (model,) = status.models
    assert model.companion.endswith(f":{companion.port}/v1")
    assert model.num_parameters == 1_000_000
    assert model.decode_tokens_per_s > 0
    assert model.prefill_tokens_per_s > 0
    assert len(model.decode_batch_tokens_per_s) == 2

    gateway = ScriptedGateway(edge.rig)
    await gateway.submit("r1", model=MODEL, text="one two three")
    text, last = await answer(gateway, "r1")
    assert text == "one two three "
    assert last.finished.reason == inf.Finished.REASON_STOP
    assert last.finished.usage.completion_tokens == 3
    assert last.finished.usage.prompt_tokens == 3
    assert last.finished.timings.total_ms >= last.finished.timings.ttft_ms > 0
    assert last.finished.timings.joules > 0
    assert companion.stats()["bodies"][-1]["temperature"] == 1.0

    await gateway.submit("r2", model=MODEL, text="one two three", max_tokens=2)
    text, last = await answer(gateway, "r2")
    assert (text, last.finished.reason) == ("one two ", inf.Finished.REASON_LENGTH)

    await gateway.submit("r3", model=MODEL, text="please refuse")
    _, last = await answer(gateway, "r3")
    assert last.failed.reason == inf.FAILURE_REASON_INVALID_ARGUMENT
    assert "too hot" in last.failed.message

    for number in range(4):
        await gateway.submit(f"h{number}", model=MODEL, text="and hold")
    await companion.until("running", 2)
    assert companion.stats()["most_running"] == 2
    for number in range(4):
        await gateway.cancel(f"h{number}")
    await companion.until("running", 0)
    assert companion.stats()["left"] >= 2

    (pid,) = companion.server_pids()
    await gateway.close()
    agent.signal(signal.SIGTERM)
    assert await agent.wait() == 0
    assert not psutil.pid_exists(pid)


async def test_dead_companion_fails_over_is_restarted_and_leaves_nothing(edge: Edge) -> None:
    first, second = Companion(edge, "a"), Companion(edge, "b")
    # It holds its port for seconds after its starter was killed.
    agent = await first.start(first.described("--stubborn"))
    (pid,) = first.server_pids()
    gateway = ScriptedGateway(edge.rig)
    # It said a word before it died, so the stream ends with an error.
    await gateway.submit("r1", model=MODEL, text="die")
    text, last = await answer(gateway, "r1")
    assert last.failed.reason == inf.FAILURE_REASON_ENGINE_CRASHED
    assert text == "die "
    await second.start(second.described())
    # Whether the first is back by now or not, the next request is answered.
    await gateway.submit("r2", model=MODEL, text="and again")
    text, last = await answer(gateway, "r2")
    assert (text, last.HasField("finished")) == ("and again ", True)
    pid = await first.until_another_runs(pid)
    await edge.until_serving("a")
    # A stand-in that is killed takes its server along: the port is free for the next one.
    (standin,) = psutil.Process(agent.pid).children()
    standin.send_signal(signal.SIGKILL)
    await first.until_another_runs(pid)
    await edge.until_serving("a")
    await gateway.close()


async def test_running_server_is_waited_for_and_used(edge: Edge) -> None:
    companion = Companion(edge, "ollama-box")
    arguments = ["--home", str(edge.folder / "x"), "--name", "x", "--join", edge.url]
    arguments += ["--token", await edge.token(), "--grace-s", "0"]
    arguments += ["--companion", f"http://127.0.0.1:{companion.port}/v1#{MODEL}"]
    agent = await AgentProcess.start(arguments, real_engine=True)
    edge.agents.append(agent)
    await agent.until("connected")
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SERVER),
        "--port",
        str(companion.port),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await edge.until_serving("x")
        gateway = ScriptedGateway(edge.rig)
        await gateway.submit("r1", model=MODEL, text="hello there")
        assert (await answer(gateway, "r1"))[0] == "hello there "
        await gateway.close()
    finally:
        os.kill(server.pid, signal.SIGTERM)
        await server.wait()


async def test_companion_answers_clients_of_the_gateway(edge: Edge, redis_url: str) -> None:
    companion = Companion(edge, "npu-board")
    await companion.start(companion.described())
    async with (
        running_gateway(edge.folder, redis_url) as gateway,
        httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=20) as http,
    ):
        http.headers["authorization"] = f"Bearer {gateway.key}"
        async with asyncio.timeout(20):  # the gateway finds the hub in Redis
            while MODEL not in (await http.get("/v1/models")).text:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        reply = await http.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        assert reply.json()["choices"][0]["message"]["content"]
        assert reply.headers["x-shoal-device"] == "npu-board"
        decision = await http.get(
            f"/shoal/v1/decisions/{reply.headers['x-shoal-request-id']}",
            headers={"authorization": f"Bearer {gateway.admin_key}"},
        )
        assert "npu" in decision.text
        assert companion.stats()["bodies"]
