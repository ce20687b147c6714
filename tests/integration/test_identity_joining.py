"""The agent at a real hub: clocks that disagree, tokens that are spent, hosts that come again."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.rpc.enrol import JoinRequest, enrol, renew
from agent.rpc.identity import Identity, IdentityStore
from agent.session.errors import AgentError, ExitCode
from agent.session.join_token import JoinToken
from orchestrator.fleet.registry_redis import RedisRegistry, connect
from orchestrator.identity.authority import Authority
from orchestrator.identity.token_store_redis import TokenStore
from shoal.v1 import device_pb2
from shoal.wire import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION
from tests.harness.hub_rig import HubRig, running_hub
from tests.harness.join_page import JoinPage
from tests.harness.redis_server import running_redis


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@asynccontextmanager
async def fleet_with_clock(
    folder: Path, redis_url: str, ahead: timedelta
) -> AsyncIterator[tuple[HubRig, JoinRequest]]:
    """A hub whose certificates were made by a clock so far ahead of the device's."""
    client = connect(redis_url)
    await client.flushall()
    # Made here first: the hub finds it and goes on with it.
    authority = Authority.load_or_create(folder / "ca", now=lambda: datetime.now(UTC) + ahead)
    load, Authority.load_or_create = Authority.load_or_create, lambda _folder: authority
    try:
        async with running_hub(folder, redis_url) as rig:
            page = JoinPage(
                {
                    "ca_pem": authority.ca_pem,
                    "enrol_address": rig.hub.addresses.enrol,
                    "hub_addresses": [rig.hub.addresses.link],
                    "protocol": {"min": MIN_PROTOCOL_VERSION, "max": PROTOCOL_VERSION},
                }
            )
            url = await page.start()
            token = JoinToken.parse(await TokenStore(client, authority.ca_sha256).create(600))
            yield rig, JoinRequest(url, token, "pi", patience_s=0.0)
            await page.stop()
    finally:
        Authority.load_or_create = load
        await client.aclose()


async def join(request: JoinRequest, folder: Path) -> Identity:
    return await enrol(request, IdentityStore(folder / "agent"))


@pytest.mark.parametrize("minutes", [-5, 5])
async def test_five_minutes_either_way_are_tolerated(
    redis_url: str, tmp_path: Path, minutes: int
) -> None:
    async with fleet_with_clock(tmp_path, redis_url, timedelta(minutes=minutes)) as (rig, request):
        identity = await join(request, tmp_path)
        assert (await renew(identity)).device_id == identity.device_id
        assert await RedisRegistry(rig._client).get(identity.device_id) is not None


async def test_clock_further_behind_is_named_as_the_cause_and_the_token_stays_good(
    redis_url: str, tmp_path: Path
) -> None:
    async with fleet_with_clock(tmp_path, redis_url, timedelta(minutes=7)) as (rig, request):
        with pytest.raises(AgentError, match="set the clock") as caught:
            await join(request, tmp_path)
        # Worth trying again: boards without a clock get the time from the network.
        assert caught.value.exit_code is ExitCode.UNREACHABLE
        await TokenStore(rig._client, rig.authority.ca_sha256).check(request.token.text)


@pytest.mark.parametrize("skew_s", [-300, 300])
async def test_skew_of_a_device_is_reported_and_not_refused(
    redis_url: str, tmp_path: Path, skew_s: int
) -> None:
    async with fleet_with_clock(tmp_path, redis_url, timedelta()) as (rig, _request):
        device = await rig.enrol("pi")
        await device.connect()
        unix_ms = int(datetime.now(UTC).timestamp() * 1000) + skew_s * 1000
        await device.write(heartbeat=device_pb2.Heartbeat(device_unix_ms=unix_ms))
        await device.read()
        status = (await rig.statuses())["pi"]
        assert status.state == "READY"
        assert abs(status.clock_skew_ms - skew_s * 1000) < 20_000
        await device.cut()


async def test_expired_and_used_tokens_end_the_agent_with_codes_of_their_own(
    redis_url: str, tmp_path: Path
) -> None:
    async with fleet_with_clock(tmp_path, redis_url, timedelta()) as (rig, request):
        await join(request, tmp_path)
        with pytest.raises(AgentError, match="used") as caught:
            await join(dataclasses.replace(request, name="pi-2"), tmp_path / "2")
        assert caught.value.exit_code is ExitCode.TOKEN_USED
        again = JoinToken.parse(await TokenStore(rig._client, rig.authority.ca_sha256).create(60))
        await rig._client.hset(f"shoal:token:{again.text.split('.')[1]}", "expires_unix_ms", 1)
        with pytest.raises(AgentError, match="expired") as caught:
            await join(dataclasses.replace(request, token=again, name="pi-3"), tmp_path / "3")
        assert caught.value.exit_code is ExitCode.TOKEN_EXPIRED


async def test_host_that_is_reinstalled_needs_its_removal_first_and_is_told_so(
    redis_url: str, tmp_path: Path
) -> None:
    async with fleet_with_clock(tmp_path, redis_url, timedelta()) as (rig, request):
        tokens = TokenStore(rig._client, rig.authority.ca_sha256)
        first = await join(request, tmp_path / "before")
        fresh = dataclasses.replace(request, token=JoinToken.parse(await tokens.create(60)))
        with pytest.raises(AgentError, match="shoal devices remove pi") as caught:
            await join(fresh, tmp_path / "after")
        assert caught.value.exit_code is ExitCode.NAME_TAKEN
        await rig.registry.revoke(first.device_id)
        second = await join(fresh, tmp_path / "after")
        assert second.device_id != first.device_id


async def test_of_fifty_devices_that_race_for_a_token_one_joins_and_each_other_is_told_why(
    redis_url: str, tmp_path: Path
) -> None:
    async with fleet_with_clock(tmp_path, redis_url, timedelta()) as (rig, request):
        names = [[f"pi-{process}-{number}" for number in range(10)] for process in range(5)]
        racers = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.harness.racers", request.url, str(tmp_path), *ten),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )
            for ten in names
        ]  # fmt: skip
        try:
            async with asyncio.timeout(120):
                for racer in racers:
                    assert racer.stdin is not None
                    assert racer.stdout is not None
                    racer.stdin.write(f"{request.token.text}\n".encode())
                    assert await racer.stdout.readline() == b"ready\n"
                told = await asyncio.gather(*(racer.communicate(b"go\n") for racer in racers))
        finally:
            for racer in racers:
                if racer.returncode is None:
                    racer.kill()
                    await racer.wait()
        results = {name: result for out, _ in told for name, result in json.loads(out).items()}
        assert sorted(results) == sorted(name for ten in names for name in ten)
        winners = {name: device_id for name, (code, device_id) in results.items() if code == 0}
        members = await rig.registry.list()
        assert {entry.name: entry.device_id for entry in members} == winners
        assert len(winners) == 1
        losers = [result for result in results.values() if result[0] != 0]
        assert {code for code, _ in losers} == {ExitCode.TOKEN_USED}
        assert all("used" in words for _, words in losers)
        # Of the others nothing is left: no identity on the device, no name taken in the fleet.
        kept = [name for name in results if IdentityStore(tmp_path / name).load() is not None]
        assert kept == list(winners)
