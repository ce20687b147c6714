"""Real agent processes at a real hub: the whole edge without Ray and without a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from orchestrator.fleet.registry_redis import connect
from orchestrator.identity.token_store_redis import TokenStore
from tests.harness.agent_process import AgentProcess
from tests.harness.hub_rig import HubRig, running_hub
from tests.harness.join_page import JoinPage


class Edge:
    """Starts agents that join the rig's hub."""

    def __init__(self, rig: HubRig, folder: Path, url: str) -> None:
        self.rig = rig
        self.folder = folder
        self.url = url
        self.model = folder / "Tiny-1M.Q4_0.gguf"
        self.model.write_bytes(b"fine")
        self.agents: list[AgentProcess] = []

    async def token(self) -> str:
        client = connect(self.rig.config.state_url)
        try:
            return await TokenStore(client, self.rig.authority.ca_sha256).create()
        finally:
            await client.aclose()

    async def start(self, name: str, token: str = "") -> AgentProcess:
        arguments = ["--home", str(self.folder / name), "--name", name, "--join", self.url]
        arguments += ["--model", str(self.model), "--grace-s", "0"]
        arguments += ["--token", token] if token else []
        agent = await AgentProcess.start(arguments)
        self.agents.append(agent)
        return agent

    async def until_serving(self, name: str, timeout_s: float = 40.0) -> None:
        async with asyncio.timeout(timeout_s):
            while True:
                status = (await self.rig.statuses()).get(name)
                if status and status.state == "READY" and any(m.state == 2 for m in status.models):
                    return
                await asyncio.sleep(0.05)


@asynccontextmanager
async def running_edge(folder: Path, redis_url: str, **settings: object) -> AsyncIterator[Edge]:
    """A hub with these settings in an emptied Redis, and the page that agents join by."""
    client = connect(redis_url)
    await client.flushall()
    await client.aclose()
    async with running_hub(folder, redis_url, **settings) as rig:
        page = JoinPage(
            {
                "ca_pem": rig.authority.ca_pem,
                "enrol_address": rig.hub.addresses.enrol,
                "hub_addresses": [rig.hub.addresses.link],
                "protocol": {"min": 0, "max": 1},
            }
        )
        edge = Edge(rig, folder, await page.start())
        yield edge
        await asyncio.gather(*(agent.stop() for agent in edge.agents))
        await page.stop()
