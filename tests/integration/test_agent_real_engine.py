"""The agent with the product's engine and the default model."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import psutil

from shoal.v1 import engine_pb2
from shoal.v1 import inference_pb2 as inf
from tests.harness.agent_hub import Connection, Fleet
from tests.harness.agent_process import AgentProcess

MODEL = "smollm2-135m-instruct"


async def until_ready(connection: Connection) -> engine_pb2.ModelReport:
    while True:
        report = (await connection.next("model", timeout_s=90)).model
        assert report.state != engine_pb2.MODEL_STATE_FAILED, report.failure
        if report.state == engine_pb2.MODEL_STATE_READY:
            return report


async def generate(connection: Connection, request_id: str) -> tuple[str, inf.SequenceUpdate]:
    prompt = inf.ChatPrompt(messages=[inf.ChatMessage(role="user", content="Say hello.")])
    request = inf.GenerateRequest(
        request_id=request_id,
        model=MODEL,
        chat=prompt,
        sampling=inf.Sampling(temperature=0.0),
        max_tokens=12,
    )
    connection.send(inference=inf.InferenceCommand(submit=request))
    text = ""
    while True:
        frame = await connection.next("inference", timeout_s=60)
        for update in frame.inference.updates:
            if update.request_id == request_id:
                text += update.delta.text
                if update.HasField("finished") or update.HasField("failed"):
                    return text, update


async def test_real_engine_answers_and_survives_kill_9(tmp_path: Path) -> None:
    fleet = Fleet()
    await fleet.start()
    agent = await AgentProcess.start(
        [
            *("--home", str(tmp_path), "--name", "real", "--join", fleet.url),
            *("--token", fleet.authority.token(), "--model", MODEL),
            *("--slots", "2", "--context", "512", "--engine-arg=--no-measure"),
        ],
        real_engine=True,
    )
    try:
        connection = await fleet.accept()
        report = await until_ready(connection)
        assert report.num_parameters > 100e6
        text, last = await generate(connection, "first")
        assert last.finished.usage.completion_tokens > 0

        (engine,) = psutil.Process(agent.pid).children()
        engine.send_signal(signal.SIGKILL)
        await until_ready(connection)
        again, _ = await generate(connection, "second")
        assert again == text
        assert psutil.Process(agent.pid).memory_info().rss < 100e6

        agent.signal(signal.SIGTERM)
        await connection.next("goodbye")
        assert await agent.wait() == 0
        await asyncio.to_thread(psutil.wait_procs, [engine], 5)
        assert not engine.is_running()
    finally:
        await agent.kill()
        await fleet.stop()
