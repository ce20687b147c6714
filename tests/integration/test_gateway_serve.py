"""`orchestrator.app` for real: Ray, Serve behind HAProxy, two fleets on one machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.harness.ports import free_port
from tests.harness.processes import command_line
from tests.harness.redis_server import running_redis

START_DEADLINE_S = 150.0
STOP_DEADLINE_S = 60.0
MARK = "SHOAL_TEST_MARK"
BODY = {"model": "big", "stream": True, "messages": [{"role": "user", "content": "word " * 1500}]}

pytestmark = pytest.mark.slow


class HangingEndpoint:
    """A cloud endpoint that sends one token and then nothing; knows when it was hung up on."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.num_begun = self.num_closed = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            data = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            head += b"transfer-encoding: chunked\r\n\r\n"
            connection.sendall(head + b"%x\r\n%s\r\n" % (len(data), data))
            self.num_begun += 1
            while connection.recv(65536):
                pass
        self.num_closed += 1

    def close(self) -> None:
        self._listener.close()


class Fleet:
    """One orchestrator process with a home of its own."""

    def __init__(self, state_url: str, cloud_config: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="shoal-g-")
        self.home = Path(self._folder.name)
        self.mark = uuid.uuid4().hex
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = (self.home / "log").open("w+")
        command = [sys.executable, "-m", "orchestrator.app", "--home", str(self.home)]
        command += ["--port", str(self.port), "--redis-url", state_url]
        command += ["--cloud-config", str(cloud_config)]
        environment = {n: v for n, v in os.environ.items() if not n.startswith("RAY_")}
        # A cluster that is not there: the fleet must make its own.
        environment |= {MARK: self.mark, "RAY_ADDRESS": "127.0.0.1:1"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment
        )

    def wait_until_ready(self) -> list[dict[str, Any]]:
        """The stages, as the process printed them."""
        watchdog = threading.Timer(START_DEADLINE_S, self.process.kill)
        watchdog.start()
        stages: list[dict[str, Any]] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            stages.append(json.loads(line))
            if stages[-1]["stage"] == "ready":
                break
        watchdog.cancel()
        self._log.seek(0)
        assert stages, self._log.read()
        assert stages[-1]["stage"] == "ready", self._log.read()
        return stages

    def processes(self) -> list[psutil.Process]:
        """Everything that this fleet started, and itself."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.is_running():
                    found.append(process)
            except psutil.Error:
                continue
        return [p for p in found if p.status() != psutil.STATUS_ZOMBIE]

    def client(self, key: str = "default") -> httpx.Client:
        return httpx.Client(**self._access(key), timeout=20)

    def async_client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(**self._access("default"), timeout=60)

    def _access(self, key: str) -> dict[str, Any]:
        text = (self.home / "keys" / f"{key}.key").read_text()
        return {
            "base_url": self.url,
            "headers": {"authorization": f"Bearer {text}"},
            "trust_env": False,
        }

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=STOP_DEADLINE_S)

    def close(self) -> None:
        for process in self.processes():
            process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()
        self._folder.cleanup()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[HangingEndpoint]:
    running = HangingEndpoint()
    yield running
    running.close()


@pytest.fixture(scope="module")
def fleets(
    endpoint: HangingEndpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Fleet, Fleet]]:
    config = tmp_path_factory.mktemp("cloud") / "cloud.toml"
    config.write_text(
        f'[[endpoint]]\nurl = "http://127.0.0.1:{endpoint.port}/v1"\n'
        '[[endpoint.model]]\nname = "big"\nnum_parameters = 70_000_000_000\n'
    )
    with ExitStack() as stack:
        pair = []
        for _ in range(2):
            fleet = Fleet(stack.enter_context(running_redis()), config)
            stack.callback(fleet.close)
            pair.append(fleet)
        for fleet in pair:
            fleet.wait_until_ready()
        yield pair[0], pair[1]


def until(condition: Any, deadline_s: float = 20.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_two_fleets_serve_side_by_side_and_know_only_their_own_keys(
    fleets: tuple[Fleet, Fleet],
) -> None:
    first, second = fleets
    joins = [httpx.get(f"{f.url}/shoal/v1/join", trust_env=False).json() for f in fleets]
    assert joins[0]["ca_pem"] != joins[1]["ca_pem"]
    assert joins[0]["enrol_address"] != joins[1]["enrol_address"]
    with first.client() as client:
        assert [m["id"] for m in client.get("/v1/models").json()["data"]] == ["big"]
        foreign = {"authorization": "Bearer " + (second.home / "keys/default.key").read_text()}
        assert client.get("/v1/models", headers=foreign).status_code == 401


def test_public_and_inner_http_ports_are_on_loopback_only(fleets: tuple[Fleet, Fleet]) -> None:
    listening = set()
    for process in fleets[0].processes():
        if "haproxy" in process.name() or "ServeReplica" in command_line(process):
            for entry in process.net_connections("inet"):
                if entry.status == psutil.CONN_LISTEN:
                    listening.add((process.name(), entry.laddr.ip, entry.laddr.port))
    haproxy = {(ip, port) for name, ip, port in listening if "haproxy" in name}
    assert ("127.0.0.1", fleets[0].port) in haproxy
    assert {ip for ip, _ in haproxy} == {"127.0.0.1"}


def test_chunks_are_not_held_back(fleets: tuple[Fleet, Fleet]) -> None:
    with (
        fleets[0].client() as client,
        client.stream("POST", "/v1/chat/completions", json=BODY) as answer,
    ):
        # The endpoint never sends more, so a buffering proxy would show nothing.
        lines = answer.iter_lines()
        assert '"role":"assistant"' in next(lines)
        assert answer.headers["x-shoal-tier"] == "cloud"


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_goes_away_on_a_reused_connection_cancels(
    fleets: tuple[Fleet, Fleet], endpoint: HangingEndpoint, stream: bool
) -> None:
    async def reaches(name: str, count: int) -> None:
        async with asyncio.timeout(20):
            while getattr(endpoint, name) != count:  # noqa: ASYNC110 - a thread counts
                await asyncio.sleep(0.02)

    for _ in range(4):
        begun, closed = endpoint.num_begun, endpoint.num_closed
        async with fleets[0].async_client() as client:
            assert (await client.get("/v1/models")).status_code == 200
            body = BODY | {"stream": stream}
            asking = asyncio.create_task(client.post("/v1/chat/completions", json=body))
            await reaches("num_begun", begun + 1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await reaches("num_closed", closed + 1)
    with fleets[0].client("admin") as admin:
        until(lambda: admin.get("/shoal/v1/status").json()["in_flight"] == 0)


def test_malformed_requests_are_4xx_through_the_proxy(fleets: tuple[Fleet, Fleet]) -> None:
    with fleets[0].client() as client:
        for body in (b"", b"{", b"\xff", b"[" * 100_000, json.dumps({"stop": ["x"] * 10**5})):
            assert client.post("/v1/chat/completions", content=body).status_code == 400
        huge = client.post("/v1/chat/completions", content=b"x" * 20_000_000)
        assert huge.status_code == 413
        # Serve reads these itself, before the gateway sees the request.
        for name in (
            b"x-request-id", b"x-session-id", b"serve_multiplexed_model_id",
            b"serve-multiplexed-model-id", b"x-request-disconnect-disabled",
        ):  # fmt: skip
            answer = client.get("/v1/models", headers=[(name, b"\xff\xfe")])
            assert answer.status_code == 200, name
        hurried = client.get("/v1/models", headers={"x-request-timeout-seconds": "1e-9"})
        assert hurried.status_code == 200


def test_killed_hub_and_gateway_come_back_on_their_ports(fleets: tuple[Fleet, Fleet]) -> None:
    fleet = fleets[1]
    answers: list[tuple[int, str]] = []
    join = httpx.get(f"{fleet.url}/shoal/v1/join", trust_env=False).json()
    for name in ("HubActor", "ServeReplica"):
        victim = next(p for p in fleet.processes() if name in command_line(p))
        victim.kill()
        victim.wait(10)

        def ready() -> bool:
            # On a busy machine an answer can take longer than a client waits.
            with contextlib.suppress(httpx.ReadTimeout), fleet.client() as client:
                answer = client.get("/v1/models")
                answers.append((answer.status_code, answer.text))
                return client.get("/readyz").status_code == 200
            return False

        until(ready, 60)
    assert httpx.get(f"{fleet.url}/shoal/v1/join", trust_env=False).json() == join
    # Whoever asks meanwhile is told to come back, in OpenAI's shape.
    assert {status for status, _ in answers} <= {200, 503}, answers
    assert all(json.loads(text) for _, text in answers)


def test_taken_port_is_refused_with_a_remedy(fleets: tuple[Fleet, Fleet]) -> None:
    command = [sys.executable, "-m", "orchestrator.app", "--home", str(fleets[0].home / "other")]
    command += ["--port", str(fleets[0].port), "--redis-url", "unix:///nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "--port" in done.stderr


def test_sigterm_ends_a_fleet_and_all_that_it_started(fleets: tuple[Fleet, Fleet]) -> None:
    first, second = fleets
    assert first.stop() == 0
    until(lambda: not first.processes(), STOP_DEADLINE_S)
    with second.client() as client:
        assert client.get("/healthz").status_code == 200
