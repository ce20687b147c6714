from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from agent.rpc import engine_host
from agent.rpc.engine_host import EngineHost
from agent.rpc.engine_process import EngineProcess, EngineSpec, engine_command
from shoal.v1 import engine_pb2
from shoal.v1 import inference_pb2 as pb
from tests.harness import agent_engine


def tiny_engine(spec: EngineSpec) -> list[str]:
    return [sys.executable, agent_engine.__file__, *engine_command(spec)[3:]]


class Listener:
    def __init__(self) -> None:
        self.reports: list[engine_pb2.ModelReport] = []
        self.lost: list[str] = []
        self._news = asyncio.Event()

    def engine_frame(self, model: str, frame: pb.InferenceFrame) -> None:
        self._news.set()

    def engine_changed(self, report: engine_pb2.ModelReport) -> None:
        self.reports.append(report)
        self._news.set()

    def engine_lost_requests(self, model: str, message: str) -> None:
        self.lost.append(message)
        self._news.set()

    async def until(self, condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._news.clear()
                await self._news.wait()


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
async def host(listener: Listener, tmp_path: Path) -> AsyncIterator[EngineHost]:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"fine")
    host = EngineHost(EngineSpec("m", model, tmp_path / "e.sock"), tiny_engine, listener)
    yield host
    await host.stop()


def states(listener: Listener) -> list[int]:
    return [report.state for report in listener.reports]


async def test_engine_that_stops_answering_is_replaced(
    host: EngineHost, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_host, "_ANSWER_WITHIN_S", 2.0)
    monkeypatch.setattr(engine_host, "_PROBE_EVERY_S", 0.1)
    host.start()
    await listener.until(lambda: engine_pb2.MODEL_STATE_READY in states(listener))
    first = host.pid
    assert first is not None
    EngineProcess.signal(host._process, signal.SIGSTOP)  # type: ignore[arg-type]
    await listener.until(lambda: states(listener).count(engine_pb2.MODEL_STATE_READY) == 2)
    assert host.pid != first
    assert any("no answer within" in message for message in listener.lost)


async def test_engine_that_cannot_be_started_is_given_up_with_the_reason(
    listener: Listener, tmp_path: Path
) -> None:
    spec = EngineSpec("m", tmp_path / "m.gguf", tmp_path / "e.sock")
    host = EngineHost(spec, lambda _: [str(tmp_path / "absent")], listener)
    host.start()
    await listener.until(lambda: engine_pb2.MODEL_STATE_FAILED in states(listener))
    assert "No such file" in host.failure
    await host.stop()


async def test_last_words_are_kept_from_very_long_output(tmp_path: Path) -> None:
    code = "import sys; sys.stderr.write('x' * 100000 + '\\nthe reason\\n'); sys.exit(3)"
    process = await EngineProcess.spawn([sys.executable, "-c", code], tmp_path / "s")
    assert await process.wait() == "the reason"


async def test_stop_ends_a_child_that_ignores_sigterm(
    listener: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.session.supervision.STOP_WITHIN_S", 0.3)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    spec = EngineSpec("m", tmp_path / "m.gguf", tmp_path / "e.sock")
    host = EngineHost(spec, lambda _: [sys.executable, "-c", code], listener)
    host.start()
    await asyncio.wait_for(host.stop(), 20)
    assert host.pid is None
