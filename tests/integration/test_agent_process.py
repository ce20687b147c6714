from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal.v1 import device_pb2 as pb
from shoal.v1 import engine_pb2
from shoal.v1 import inference_pb2 as inf
from tests.harness.agent_hub import Authority, Connection, Fleet
from tests.harness.agent_process import AgentProcess
from tests.harness.file_server import FileServer
from tests.harness.tiny_llama_model import write_tiny_llama_model


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    await fleet.start()
    yield fleet
    await fleet.stop()


class Starter:
    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet = fleet
        self.home = folder / "agent"
        self.model = folder / "Tiny-1M.Q4_0.gguf"
        self.model.write_bytes(b"fine")
        self.agents: list[AgentProcess] = []

    async def start(self, *more: str) -> AgentProcess:
        arguments = ["--home", str(self.home), "--name", "pi", "--join", self.fleet.url]
        arguments += [
            "--token",
            self.fleet.authority.token(),
            "--model",
            str(self.model),
            "--grace-s",
            "0",
            *more,
        ]
        agent = await AgentProcess.start(arguments)
        self.agents.append(agent)
        return agent


@pytest.fixture
async def starter(fleet: Fleet, tmp_path: Path) -> AsyncIterator[Starter]:
    starter = Starter(fleet, tmp_path)
    yield starter
    await asyncio.gather(*(agent.stop() for agent in starter.agents))


def submit(connection: Connection, request_id: str, text: str, model: str = "tiny-1m") -> None:
    request = inf.GenerateRequest(request_id=request_id, model=model, text=text)
    connection.send(inference=inf.InferenceCommand(submit=request))


async def updates_of(connection: Connection, request_id: str) -> list[inf.SequenceUpdate]:
    """Updates up to and with the terminal one."""
    seen = []
    while True:
        frame = await connection.next("inference")
        for update in frame.inference.updates:
            if update.request_id == request_id:
                seen.append(update)
                if update.HasField("finished") or update.HasField("failed"):
                    return seen


async def until_model(connection: Connection, state: Any) -> engine_pb2.ModelReport:
    while True:
        frame = await connection.next("model")
        if frame.model.state == state:
            return frame.model


async def ready(starter: Starter) -> tuple[AgentProcess, Connection]:
    agent = await starter.start()
    connection = await starter.fleet.accept()
    await until_model(connection, engine_pb2.MODEL_STATE_READY)
    return agent, connection


async def test_agent_enrols_serves_and_says_goodbye(starter: Starter) -> None:
    agent, connection = await ready(starter)
    await agent.until("connected")
    assert connection.peer == [b"device:d1"]
    assert connection.hello is not None
    assert connection.hello.capabilities.cores >= 1
    heartbeat = await connection.next("heartbeat")
    assert heartbeat.epoch == starter.fleet.epoch
    assert heartbeat.heartbeat.load.memory_total_bytes > 0
    submit(connection, "r1", "echo one two three")
    updates = await updates_of(connection, "r1")
    assert [u.delta.text for u in updates if u.HasField("delta")] == ["one", "two", "three"]
    assert updates[-1].finished.usage.completion_tokens == 3
    assert (starter.home / "connected").exists()  # what install.sh waits for

    children = psutil.Process(agent.pid).children()
    agent.signal(signal.SIGTERM)
    assert (await connection.next("goodbye")).epoch == starter.fleet.epoch
    assert await agent.wait() == 0
    assert children
    assert not any(child.is_running() for child in children)


async def test_restart_needs_no_token(starter: Starter) -> None:
    agent, _ = await ready(starter)
    await agent.kill()
    arguments = ["--home", str(starter.home), "--name", "pi"]
    again = await AgentProcess.start(arguments)
    starter.agents.append(again)
    connection = await starter.fleet.accept()
    assert connection.peer == [b"device:d1"]
    assert len(starter.fleet.enrolments) == 1
    key = starter.home / "device.key"
    assert key.stat().st_mode & 0o777 == 0o600


async def test_killed_engine_fails_its_requests_and_comes_back(starter: Starter) -> None:
    _, connection = await ready(starter)
    submit(connection, "held", "hold")
    await connection.next("inference")
    submit(connection, "deadly", "die")
    held = await updates_of(connection, "held")
    assert held[-1].failed.reason == inf.FAILURE_REASON_ENGINE_CRASHED
    assert "SIGKILL" in held[-1].failed.message
    report = await until_model(connection, engine_pb2.MODEL_STATE_READY)
    assert report.decode_tokens_per_s == 80  # kept from the first start, not measured again
    submit(connection, "next", "echo back")
    assert (await updates_of(connection, "next"))[-1].HasField("finished")


async def test_broken_model_is_reported_failed_with_the_engines_last_words(
    starter: Starter,
) -> None:
    starter.model.write_bytes(b"broken")
    agent = await starter.start()
    connection = await starter.fleet.accept()
    report = await until_model(connection, engine_pb2.MODEL_STATE_FAILED)
    assert "not a GGUF file" in report.failure
    submit(connection, "r1", "echo one")
    assert (await updates_of(connection, "r1"))[-1].HasField("failed")
    assert "not a GGUF file" in (await agent.until("engine_failed"))["reason"]


async def test_unknown_model_and_draining_are_refused(starter: Starter) -> None:
    agent, connection = await ready(starter)
    submit(connection, "r1", "echo one", model="absent")
    failed = (await updates_of(connection, "r1"))[-1].failed
    assert failed.reason == inf.FAILURE_REASON_MODEL_NOT_FOUND
    submit(connection, "held", "hold")
    await connection.next("inference")
    connection.send(drain=pb.Drain(reason="maintenance"))
    submit(connection, "r2", "echo one")
    failed = (await updates_of(connection, "r2"))[-1].failed
    assert failed.reason == inf.FAILURE_REASON_DRAINING
    cancel = inf.CancelRequest(request_id="held")
    connection.send(inference=inf.InferenceCommand(cancel=cancel))
    assert (await connection.next("goodbye")).goodbye.reason == "maintenance"
    assert await agent.wait() == 0


async def test_lost_hub_cancels_what_runs_and_the_agent_returns(starter: Starter) -> None:
    _, connection = await ready(starter)
    submit(connection, "held", "hold")
    await connection.next("inference")
    await starter.fleet.stop_link()
    await starter.fleet.start_link()
    connection = await starter.fleet.accept()
    while True:
        heartbeat = (await connection.next("heartbeat")).heartbeat
        if heartbeat.engines and heartbeat.engines[0].counters["cancelled"] == 1:
            break
    submit(connection, "next", "echo back")
    assert (await updates_of(connection, "next"))[-1].HasField("finished")


async def test_senseless_frames_change_nothing(starter: Starter) -> None:
    agent, connection = await ready(starter)
    submit(connection, "held", "hold")
    await connection.next("inference")
    connection.send()
    connection.send(inference=inf.InferenceCommand())
    connection.send(inference=inf.InferenceCommand(cancel=inf.CancelRequest(request_id="none")))
    connection.send(unload_model=pb.UnloadModel(name="none"))
    connection.send(load_model=pb.LoadModel(name="other", url="file:///etc/passwd"))
    connection.send(load_model=pb.LoadModel())
    connection.send(heartbeat_ack=pb.HeartbeatAck(next_interval_ms=1, lease_ms=1))
    submit(connection, "held", "echo again")
    submit(connection, "", "echo one")
    failed = (await updates_of(connection, ""))[-1].failed
    assert failed.param == "request_id"
    submit(connection, "next", "echo one two")
    assert (await updates_of(connection, "next"))[-1].HasField("finished")
    assert psutil.pid_exists(agent.pid)


async def test_hub_on_another_port_is_found_again(starter: Starter) -> None:
    await ready(starter)
    await starter.fleet.stop_link()
    await starter.fleet.start_link(move=True)
    starter.fleet.page["hub_addresses"] = [starter.fleet.link_address]
    await starter.fleet.accept(timeout_s=45)


async def test_hub_that_stops_answering_is_dialled_anew(starter: Starter) -> None:
    starter.fleet.script.acknowledge = False
    starter.fleet.script.lease_ms = 500
    await starter.start()
    connection = await starter.fleet.accept()
    await connection.until_closed()
    await starter.fleet.accept()


async def test_model_is_fetched_served_and_unloaded_on_the_hubs_word(
    starter: Starter, tmp_path: Path
) -> None:
    _, connection = await ready(starter)
    content = write_tiny_llama_model(tmp_path / "Other.F32.gguf").read_bytes()
    async with FileServer(content) as url:
        order = pb.LoadModel(name="other", url=url, sha256=hashlib.sha256(content).hexdigest())
        connection.send(load_model=order)
        while (await until_model(connection, engine_pb2.MODEL_STATE_READY)).name != "other":
            pass
    submit(connection, "r1", "echo one", model="other")
    assert (await updates_of(connection, "r1"))[-1].HasField("finished")
    connection.send(unload_model=pb.UnloadModel(name="other"))
    assert (await until_model(connection, engine_pb2.MODEL_STATE_UNLOADED)).name == "other"
    submit(connection, "r2", "echo one", model="other")
    failed = (await updates_of(connection, "r2"))[-1].failed
    assert failed.reason == inf.FAILURE_REASON_MODEL_NOT_FOUND


async def test_model_that_cannot_be_fetched_is_reported_with_the_reason(starter: Starter) -> None:
    _, connection = await ready(starter)
    async with FileServer(b"tampered") as url:
        connection.send(load_model=pb.LoadModel(name="other", url=url, sha256="0" * 64))
        report = await until_model(connection, engine_pb2.MODEL_STATE_FAILED)
    assert "SHA-256" in report.failure


@pytest.mark.parametrize(
    ("reason", "exit_code"),
    [
        (pb.Reject.REASON_REVOKED, 20),
        (pb.Reject.REASON_REPLACED, 21),
        (pb.Reject.REASON_PROTOCOL, 22),
    ],
)
async def test_final_rejections_end_the_agent(
    starter: Starter, reason: Any, exit_code: int
) -> None:
    agent = await starter.start()
    connection = await starter.fleet.connections.get()
    connection.send(reject=pb.Reject(reason=reason, message="no"))
    connection.hang_up()
    assert await agent.wait() == exit_code
    assert not (starter.home / "connected").exists()


async def test_hub_that_shuts_down_is_retried(starter: Starter) -> None:
    await starter.start()
    connection = await starter.fleet.connections.get()
    connection.send(reject=pb.Reject(reason=pb.Reject.REASON_SHUTTING_DOWN))
    connection.hang_up()
    await starter.fleet.accept()


async def test_second_agent_on_the_same_home_is_refused(starter: Starter) -> None:
    await ready(starter)
    second = await starter.start()
    assert await second.wait() == 30


async def test_member_run_with_another_fleets_token_is_told_so_and_stays_where_it_is(
    starter: Starter,
) -> None:
    agent, _ = await ready(starter)
    await agent.stop()
    identity = (starter.home / "identity.json").read_bytes()
    second = await starter.start("--token", Authority().token())
    assert await second.wait() == 2
    assert (starter.home / "identity.json").read_bytes() == identity


async def test_agent_is_light_and_imports_no_engine(starter: Starter) -> None:
    agent, connection = await ready(starter)
    await connection.next("heartbeat")
    process = psutil.Process(agent.pid)
    assert process.memory_info().rss < 100e6
    mapped = {os.path.basename(m.path) for m in process.memory_maps()}
    assert not any("llama" in name or "raylet" in name for name in mapped)


async def test_killed_agent_comes_back_with_its_engine(starter: Starter) -> None:
    agent, _ = await ready(starter)
    await agent.kill()
    again = await starter.start()
    connection = await starter.fleet.accept()
    await until_model(connection, engine_pb2.MODEL_STATE_READY)
    await asyncio.wait_for(again.until("engine_ready"), 10)
