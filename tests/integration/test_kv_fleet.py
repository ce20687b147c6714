"""KV blocks shared by real agents of a real hub: what one computed the others restore."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from orchestrator.config import CacheAccess
from orchestrator.fleet.decisions_redis import DecisionStore
from orchestrator.fleet.registry_redis import connect
from orchestrator.identity.key_files import create_private
from orchestrator.identity.token_store_redis import TokenStore
from shoal.cli import cache_server, redis_server
from shoal.home import Home
from shoal.kv_sharing import SharePolicy
from shoal.v1 import fleet_pb2, fleet_pb2_grpc
from shoal.v1 import inference_pb2 as inf
from tests.harness.agent_process import AgentProcess
from tests.harness.hub_rig import HubRig, ScriptedGateway, running_hub
from tests.harness.join_page import JoinPage
from tests.harness.ports import free_port
from tests.harness.redis_server import running_redis

MODEL = "smollm2-135m-instruct"
NUM_BLOCKS = 2
PROMPT = list(range(1000, 1000 + NUM_BLOCKS * 128 + 20))


@dataclass(frozen=True)
class CacheRedis:
    """A cache Redis started as `shoal up` starts it."""

    home: Home
    port: int

    @property
    def access(self) -> CacheAccess:
        url = cache_server.cache_url(self.port)
        return CacheAccess(url, url, self.home.cache_admin_file, self.home.kv_key_file)

    def admin(self) -> redis.Redis:
        password = self.home.cache_admin_file.read_text().strip()
        return redis.Redis(port=self.port, username="shoal-admin", password=password)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[CacheRedis]:
    home = Home(tmp_path / "home")
    home.make_private_dirs()
    create_private(home.kv_key_file, b"k" * 32)
    running = CacheRedis(home, cache_server.choose_cache_port(home))
    binary = redis_server.find_redis_binary()
    assert binary is not None
    command = cache_server.cache_command(home, binary, running.port)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not cache_server.cache_answers(running.port):
            assert process.poll() is None
        yield running
    finally:
        process.terminate()
        process.wait(10)


class Edge:
    """Two real agents at one hub; `ask` sends a prompt to the one that is named."""

    def __init__(self, rig: HubRig, folder: Path, url: str) -> None:
        self.rig = rig
        self.folder = folder
        self.url = url
        self.agents: dict[str, AgentProcess] = {}

    async def start(self, name: str) -> None:
        client = connect(self.rig.config.state_url)
        token = await TokenStore(client, self.rig.authority.ca_sha256).create()
        await client.aclose()
        arguments = ["--home", str(self.folder / name), "--name", name, "--join", self.url]
        arguments += ["--token", token, "--model", MODEL, "--grace-s", "0"]
        arguments += ["--slots", "2", "--context", "512", "--engine-arg=--no-measure"]
        self.agents[name] = await AgentProcess.start(arguments, real_engine=True)

    async def until_serving(self, name: str) -> None:
        async with asyncio.timeout(60):
            while True:
                status = (await self.rig.statuses()).get(name)
                if status and status.state == "READY" and any(m.state == 2 for m in status.models):
                    return
                await asyncio.sleep(0.05)

    def kill_engine(self, name: str) -> None:
        for child in psutil.Process(self.agents[name].pid).children():
            child.send_signal(signal.SIGKILL)

    async def ask(
        self, request_id: str, device: str, prompt: list[int] = PROMPT
    ) -> tuple[list[int], dict[str, int]]:
        """The greedy answer's tokens, and how many prompt tokens came from which tier."""
        gateway = ScriptedGateway(self.rig)
        await gateway.submit(
            request_id,
            model=MODEL,
            tokens=inf.TokenPrompt(ids=prompt),
            sampling=inf.Sampling(temperature=0),
            max_tokens=8,
            ignore_eos=True,
            tenant_salt=b"tenant",
            hints=inf.RoutingHints(device=device),
        )
        tokens: list[int] = []
        async with asyncio.timeout(60):
            while True:
                update = await gateway.next()
                assert not update.HasField("failed"), update.failed.message
                tokens += update.delta.tokens
                if update.HasField("finished"):
                    await gateway.close()
                    return tokens, dict(update.finished.usage.cached_tokens_by_tier)

    async def sharing(self, name: str) -> tuple[str, int]:
        """Policy and write limit, as the device's engine says at its next heartbeat."""
        told = (await self.rig.statuses())[name].models[0].load.kv_sharing
        return told.policy, told.write_bytes_per_s

    async def record(self, request_id: str) -> dict[str, Any]:
        """The request's decision record, once it is stored."""
        client = connect(self.rig.config.state_url)
        try:
            async with asyncio.timeout(20):
                store = DecisionStore(client)
                while (text := await store.get(request_id)) is None:  # noqa: ASYNC110 - in Redis
                    await asyncio.sleep(0.02)
        finally:
            await client.aclose()
        record: dict[str, Any] = json.loads(text)
        return record


def join_page(rig: HubRig) -> JoinPage:
    return JoinPage(
        {
            "ca_pem": rig.authority.ca_pem,
            "enrol_address": rig.hub.addresses.enrol,
            "hub_addresses": [rig.hub.addresses.link],
            "protocol": {"min": 0, "max": 1},
        }
    )


def engines_of(agent: AgentProcess) -> set[int]:
    return {child.pid for child in psutil.Process(agent.pid).children()}


@pytest.fixture
async def edge(tmp_path: Path, cache: CacheRedis) -> AsyncIterator[Edge]:
    with running_redis() as state_url:
        async with running_hub(tmp_path, state_url, cache=cache.access) as rig:
            page = join_page(rig)
            edge = Edge(rig, tmp_path, await page.start())
            yield edge
            await asyncio.gather(*(agent.stop() for agent in edge.agents.values()))
            await page.stop()


async def test_a_prefix_computed_on_one_device_is_restored_on_another_and_from_disk(
    edge: Edge, cache: CacheRedis
) -> None:
    for name in ("a", "b"):
        await edge.start(name)
    for name in ("a", "b"):
        await edge.until_serving(name)
    cold, tiers = await edge.ask("r1", "a")
    assert tiers == {}
    admin = cache.admin()
    async with asyncio.timeout(20):
        while len(list(admin.scan_iter("shoal:kv:*"))) < NUM_BLOCKS:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    assert await edge.ask("r2", "b") == (cold, {"redis": NUM_BLOCKS * 128})
    told = (await edge.record("r2"))["actual"]
    assert (told["kv_fetch"]["fetch"], told["kv_fetch"]["num_blocks"]) == (True, NUM_BLOCKS)
    assert told["kv_fetch"]["recompute_ms"] >= 0
    assert all(told["kv_restore_ms"][tier] > 0 for tier in ("redis", "host"))
    again, tiers = await edge.ask("r3", "b")
    # Its own memory also has what came after the last whole block.
    assert (again, set(tiers)) == (cold, {"host"})
    assert tiers["host"] > NUM_BLOCKS * 128

    edge.kill_engine("a")
    async with asyncio.timeout(60):
        while (await edge.rig.statuses())["a"].models[0].state == 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await edge.until_serving("a")
    again, tiers = await edge.ask("r4", "a")
    assert (again, set(tiers)) == (cold, {"disk"})
    assert tiers["disk"] > NUM_BLOCKS * 128

    # Each device is a user of its own, limited to blocks, and gone with the device.
    users = [user for user in admin.acl_users() if user.startswith("device-")]
    assert len(users) == 2
    assert "~shoal:kv:*" in str(admin.acl_list())
    secret_file = edge.folder / "a" / "kv-shared.json"
    assert secret_file.stat().st_mode & 0o777 == 0o600
    removed = (await edge.rig.statuses())["b"].device_id
    async with edge.rig.gateway_channel() as channel:
        stub = fleet_pb2_grpc.FleetStub(channel)
        await stub.RemoveDevice(fleet_pb2.DeviceRequest(device="b"), timeout=10)
    assert f"device-{removed}" not in admin.acl_users()
    # What was saved survives the cache's restart, passwords only as digests.
    saved = (cache.home.redis_dir / "cache.acl").read_text()
    assert users[0] in saved or users[1] in saved
    password = cache.home.cache_admin_file.read_text().strip()
    assert password not in saved
    assert hashlib.sha256(password.encode()).hexdigest() in saved
    admin.close()


async def test_the_fleets_terms_reach_engines_that_run(tmp_path: Path, cache: CacheRedis) -> None:
    link_port = free_port()
    never = replace(cache.access, share_policy=SharePolicy.NEVER)
    limited = replace(cache.access, write_bytes_per_s=50_000_000)
    admin = cache.admin()
    with running_redis() as state_url:
        async with running_hub(tmp_path, state_url, cache=never, link_port=link_port) as rig:
            page = join_page(rig)
            edge = Edge(rig, tmp_path, await page.start())
            await edge.start("a")
            await edge.until_serving("a")
            engine = engines_of(edge.agents["a"])
            cold, _ = await edge.ask("r1", "a")
            assert await edge.sharing("a") == ("never", 0)
            assert not list(admin.scan_iter("shoal:kv:*"))
        # As after `shoal down`, and `shoal up` with other options.
        async with running_hub(tmp_path, state_url, cache=limited, link_port=link_port) as rig:
            edge.rig = rig
            await edge.until_serving("a")
            async with asyncio.timeout(60):
                number = 2
                while await edge.sharing("a") != ("always", 50_000_000):
                    # An engine looks when it has work.
                    assert (await edge.ask(f"r{number}", "a"))[0] == cold
                    number += 1
                while len(list(admin.scan_iter("shoal:kv:*"))) < NUM_BLOCKS:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            # A cache that lost its users gets them back.
            (user,) = (each for each in admin.acl_users() if each.startswith("device-"))
            admin.acl_deluser(user)
            async with asyncio.timeout(90):
                while user not in admin.acl_users():
                    number += 1
                    await edge.ask(f"r{number}", "a", [number + 50, *PROMPT])
            assert engines_of(edge.agents["a"]) == engine
            await edge.agents["a"].stop()
            await page.stop()
    admin.close()
