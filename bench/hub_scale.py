"""One hub with thousands of simulated agents: its CPU, its memory, its answers' times.

    python -m bench.hub_scale [--agents 10000] [--heartbeat-s 5] [--seconds 60]

A hub (no Ray around it), a Redis and a few client processes run on this machine. Each
simulated agent has a certificate and a gRPC channel of its own over mutual TLS, says Hello
with one model, and sends a heartbeat with its load every `--heartbeat-s`, evenly spread. A
gateway watches the hub's summary meanwhile. Reported over `--seconds` after all are
connected: the hub's CPU time as a share of one core, its resident memory for each agent
(the growth since before the first one came), and the time from heartbeat to answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bench.machine import machine
from bench.simulated_agents import Agents, Setting
from orchestrator.config import HubConfig
from orchestrator.fleet.registry import DeviceEntry
from orchestrator.fleet.registry_redis import RedisRegistry, connect
from orchestrator.fleet.view import DeviceId
from orchestrator.hub.build import build_hub
from orchestrator.identity.authority import Authority
from shoal.logs import set_up_logs
from shoal.v1 import fleet_pb2, fleet_pb2_grpc
from shoal.wire import CHANNEL_OPTIONS, HUB_TLS_NAME
from tests.harness.redis_server import running_redis

RESULTS = Path(__file__).parent / "results"
# Client processes: one Python process would be slower than the hub that it loads.
CLIENTS = 3
CONNECT_LIMIT_S = 240.0


async def serve_hub(setting: Setting) -> None:
    """Run the hub until stdin ends; prints its address."""
    set_up_logs("hub")
    config = HubConfig(
        "hub-1",
        setting.state_url,
        setting.folder / "ca",
        setting.folder / "hub",
        heartbeat_interval_ms=int(setting.heartbeat_s * 1_000),
        lease_ms=int(setting.heartbeat_s * 5_000),
    )
    hub = build_hub(config)
    addresses = await hub.start()
    print(addresses.link, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await hub.stop()


def _certificates(authority: Authority, ids: list[str]) -> tuple[bytes, list[bytes]]:
    """One key, and a certificate for each device."""
    key = ec.generate_private_key(ec.SECP256R1())
    csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    csr_pem = csr.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    key_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return key_pem, [authority.issue_device(csr_pem, each).pem.encode() for each in ids]


class Bench:
    """Starts the processes, waits until all agents are connected, and measures."""

    def __init__(self, setting: Setting, seconds: float) -> None:
        self._setting = setting
        self._seconds = seconds
        self._authority = Authority.load_or_create(setting.folder / "ca")
        self._hub: psutil.Process
        self._clients: list[subprocess.Popen[str]] = []

    def prepare(self) -> None:
        """Certificates, and the devices' entries in the registry."""
        folder = self._setting.folder
        (folder / "hub").mkdir()
        key, certificate = self._authority.issue_service("hub:hub-1", [HUB_TLS_NAME])
        (folder / "hub" / "tls.key").write_text(key)
        (folder / "hub" / "tls.crt").write_text(certificate)
        ids = [f"{number:032x}" for number in range(self._setting.num_agents)]
        key_pem, certificates = _certificates(self._authority, ids)
        share = -(-len(ids) // CLIENTS)
        for client in range(CLIENTS):
            part = certificates[client * share : (client + 1) * share]
            lines = [key_pem.decode(), *(each.decode() for each in part)]
            (folder / f"client-{client}.json").write_text(json.dumps(lines))
        asyncio.run(self._enrol(ids))

    async def _enrol(self, ids: list[str]) -> None:
        client = connect(self._setting.state_url)
        registry = RedisRegistry(client)
        for each in ids:
            await registry.add(DeviceEntry(DeviceId(each), f"device-{each[-6:]}"))
        await client.aclose()

    def run(self) -> dict[str, object]:
        """The figures."""
        hub = self._start("hub", "")
        link = str(hub.stdout.readline().strip()) if hub.stdout else ""
        self._hub = psutil.Process(hub.pid)
        empty_bytes = self._hub.memory_info().rss
        try:
            self._clients = [self._start(f"client-{i}", link) for i in range(CLIENTS)]
            began_s = time.monotonic()
            for client in self._clients:
                if client.stdout:
                    client.stdout.readline()
            watcher = self._start("gateway", link)
            self._wait_connected(began_s)
            connect_s, connect_cpu_s = time.monotonic() - began_s, self._cpu_s()
            self._ask()
            cpu_s, began_s = self._cpu_s(), time.monotonic()
            time.sleep(self._seconds)
            wall_s = time.monotonic() - began_s
            core = (self._cpu_s() - cpu_s) / wall_s
            reports = self._ask()
            watcher.terminate()
            rss = self._hub.memory_info().rss
        finally:
            for process in (*self._clients, hub):
                process.stdin and process.stdin.close()
                process.terminate()
                process.wait()
        answers = sorted(ms for report in reports for ms in report["answers_ms"])
        return {
            "agents": self._setting.num_agents,
            "connected": sum(report["connected"] for report in reports),
            "failures": [text for report in reports for text in report["failures"]],
            "heartbeat_s": self._setting.heartbeat_s,
            "seconds": round(wall_s, 1),
            "hub_core_share": round(core, 3),
            "hub_rss_mib": round(rss / 2**20, 1),
            "hub_rss_before_mib": round(empty_bytes / 2**20, 1),
            "kib_per_agent": round((rss - empty_bytes) / 1_024 / self._setting.num_agents, 1),
            "heartbeats": len(answers),
            "heartbeat_answer_ms_p50": statistics.median(answers),
            "heartbeat_answer_ms_p99": answers[int(0.99 * (len(answers) - 1))],
            "connecting_s": round(connect_s, 1),
            "connecting_hub_cpu_s": round(connect_cpu_s, 1),
        }

    def _start(self, role: str, link: str) -> subprocess.Popen[str]:
        setting = self._setting
        command = [sys.executable, "-m", "bench.hub_scale", "--role", role, "--link", link]
        command += ["--folder", str(setting.folder), "--state-url", setting.state_url]
        command += ["--agents", str(setting.num_agents)]
        command += ["--heartbeat-s", str(setting.heartbeat_s)]
        with (setting.folder / f"{role}.log").open("w") as log:
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def _cpu_s(self) -> float:
        times = self._hub.cpu_times()
        return float(times.user + times.system)

    def _ask(self) -> list[dict[str, Any]]:
        for client in self._clients:
            if client.stdin:
                client.stdin.write("count\n")
                client.stdin.flush()
        return [json.loads(c.stdout.readline()) for c in self._clients if c.stdout]

    def _wait_connected(self, began_s: float) -> None:
        while True:
            time.sleep(1.0)
            reports = self._ask()
            connected = sum(report["connected"] for report in reports)
            print(f"{connected} connected", file=sys.stderr)
            if connected >= self._setting.num_agents:
                return
            if time.monotonic() - began_s > CONNECT_LIMIT_S:
                raise SystemExit(f"only {connected} agents connected; {reports}")


async def watch(setting: Setting) -> None:
    """Be a gateway that reads summaries."""
    authority = Authority.load_or_create(setting.folder / "ca")
    key, certificate = authority.issue_service("gateway:g1")
    credentials = grpc.ssl_channel_credentials(
        authority.ca_pem.encode(), key.encode(), certificate.encode()
    )
    options = [*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", HUB_TLS_NAME)]
    async with grpc.aio.secure_channel(setting.link, credentials, options=options) as channel:
        stub = fleet_pb2_grpc.FleetStub(channel)  # type: ignore[no-untyped-call]
        async for _ in stub.WatchSummary(fleet_pb2.WatchSummaryRequest()):
            pass


def main() -> None:
    """Measure, or be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--heartbeat-s", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--role", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--state-url", default="", help=argparse.SUPPRESS)
    parser.add_argument("--link", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    if given.role:
        setting = Setting(
            given.folder, given.state_url, given.agents, given.heartbeat_s, given.link
        )
        asyncio.run(_role(given.role)(setting))
        return
    with tempfile.TemporaryDirectory(prefix="shoal-scale-") as name, running_redis() as url:
        bench = Bench(Setting(Path(name), url, given.agents, given.heartbeat_s), given.seconds)
        bench.prepare()
        figures = bench.run()
    document = {"machine": machine(), "what": " ".join(sys.argv[1:]), "hub": figures}
    print(json.dumps(document, indent=2))
    (RESULTS / "hub_scale.json").write_text(json.dumps(document, indent=2) + "\n")


def _role(role: str) -> Callable[[Setting], Coroutine[None, None, None]]:
    async def agents(setting: Setting) -> None:
        lines = json.loads((setting.folder / f"{role}.json").read_text())
        key, *certificates = (line.encode() for line in lines)
        ca_pem = (setting.folder / "ca" / "ca.crt").read_bytes()
        await Agents(setting, key, certificates, ca_pem).run()

    return {"hub": serve_hub, "gateway": watch}.get(role, agents)


if __name__ == "__main__":
    main()
