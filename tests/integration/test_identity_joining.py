"""Clocks that disagree: what certificates tolerate, and what is said of them."""

from __future__ import annotations

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
