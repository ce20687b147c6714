"""One device behind NAT and one short partition, in namespaces; prints what was seen as JSON.

    python -m tests.harness.net_trial

A real hub and a real agent with the tests' engine, so that it takes seconds. The whole
fleet on longer and worse networks: bench/network.py.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

import psutil

from orchestrator.identity.token_store_redis import TokenStore
from shoal.wire import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION
from tests.harness.agent_process import STUB_MAIN
from tests.harness.hub_rig import HubRig, running_hub
from tests.harness.join_page import JoinPage
from tests.harness.netlab import HOST_ADDRESS, NetLab, Place, enter
from tests.harness.redis_server import running_redis

HEARTBEAT_S = 1.0
LEASE_S = 3.0
# Long enough for the agent's dials and the kernel's retries to have grown apart.
PARTITION_S = 7.0


async def _trial(folder: Path, redis_url: str) -> dict[str, object]:
    lab = NetLab()
    place = lab.add()
    terms = {"heartbeat_interval_ms": HEARTBEAT_S * 1000, "lease_ms": LEASE_S * 1000}
    settings = {name: int(value) for name, value in terms.items()}
    async with running_hub(folder, redis_url, host=HOST_ADDRESS, **settings) as rig:
        agent = await _start_agent(rig, place, folder)
        await _until(rig, "READY")
        engines = _engines(agent.pid)
        lab.cut(place)
        cut = time.monotonic()
        await _until(rig, "DOWN")
        noticed_s = time.monotonic() - cut
        await asyncio.sleep(PARTITION_S - noticed_s)
        lab.heal(place)
        healed = time.monotonic()
        await _until(rig, "READY")
        seen = {
            "can_be_dialled": lab.reaches("192.168.1.2"),
            "noticed_s": noticed_s,
            "back_s": time.monotonic() - healed,
            "engines_before": engines,
            "engines_after": _engines(agent.pid),
            "devices": len(await rig.statuses()),
        }
        agent.terminate()
        await agent.wait()
    return seen


async def _start_agent(rig: HubRig, place: Place, folder: Path) -> asyncio.subprocess.Process:
    page = JoinPage(
        {
            "ca_pem": rig.authority.ca_pem,
            "enrol_address": rig.hub.addresses.enrol,
            "hub_addresses": [rig.hub.addresses.link],
            "protocol": {"min": MIN_PROTOCOL_VERSION, "max": PROTOCOL_VERSION},
        }
    )
    url = await page.start(HOST_ADDRESS)
    token = await TokenStore(rig._client, rig.authority.ca_sha256).create(600)
    model = folder / "Tiny-1M.Q4_0.gguf"
    model.write_bytes(b"fine")
    arguments = ["--home", str(folder / "agent"), "--name", "pi", "--join", url]
    arguments += ["--token", token, "--model", str(model), "--grace-s", "0"]
    return await asyncio.create_subprocess_exec(
        *place.command([sys.executable, "-c", STUB_MAIN, *arguments]),
        stdout=asyncio.subprocess.DEVNULL,
    )


async def _until(rig: HubRig, state: str) -> None:
    async with asyncio.timeout(30):
        while True:
            status = (await rig.statuses()).get("pi")
            if status is not None and status.state == state:
                return
            await asyncio.sleep(0.05)


def _engines(agent_pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(agent_pid).children(recursive=True)]


def main() -> None:
    """Enter the namespaces and run."""
    enter(["-m", "tests.harness.net_trial"])
    with running_redis() as url, tempfile.TemporaryDirectory(prefix="shoal-net-") as folder:
        print(json.dumps(asyncio.run(_trial(Path(folder), url))))


if __name__ == "__main__":
    main()
