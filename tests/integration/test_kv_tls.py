"""The cache Redis of a fleet that listens beyond its machine: TLS, and a user for each device."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import redis

from agent.config import PrefixCacheConfig
from agent.kv.access import SharedAccess
from agent.kv.fetching import Tier
from agent.kv.redis_client import shared_client
from agent.kv.redis_tier import SharedTier
from agent.kv.sharing import NotShared, SharedTierConfig
from agent.llama.shared_access import read_terms
from orchestrator.identity.authority import Authority
from orchestrator.identity.cache_users import CacheLogin
from orchestrator.identity.cache_users_redis import CacheUsers
from orchestrator.setup import cache_access, prepare_identity
from shoal.blocks import SHARED_KEY_PREFIX
from shoal.cli import cache_server, redis_server
from shoal.home import Home
from tests.harness.kv_rig import LIVENESS_S, Rig, prompt, sealer

# What devices dial; the certificate is for it.
ADVERTISED = "127.0.0.1"


@dataclass(frozen=True)
class TlsCache:
    """A running one, and who manages its users."""

    home: Home
    port: int
    users: CacheUsers

    async def login(self, device_id: str) -> CacheLogin:
        async with asyncio.timeout(LIVENESS_S):
            # A busy machine may need longer than the hub waits.
            while (login := await self.users.grant(device_id)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return login


@pytest.fixture
def process(tmp_path: Path) -> Iterator[TlsCache]:
    home = Home(tmp_path / "home")
    home.make_private_dirs()
    port = cache_server.choose_cache_port(home)
    url = cache_server.cache_url(port, ADVERTISED)
    prepare_identity(home, cache_names=(ADVERTISED,))
    binary = redis_server.find_redis_binary()
    assert binary is not None
    if not cache_server.knows_tls(binary):
        pytest.skip(f"{binary} was built without TLS")
    command = cache_server.cache_command(home, binary, port, ADVERTISED)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not cache_server.cache_answers(port, home.ca_dir / "ca.crt"):
            assert process.poll() is None
        access = cache_access(url, home, ADVERTISED, ADVERTISED)
        assert access is not None
        yield TlsCache(home, port, CacheUsers(access))
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
async def cache(process: TlsCache) -> AsyncIterator[TlsCache]:
    yield process
    await process.users.close()


def as_an_engine_reads_it(folder: Path, login: CacheLogin, ca_pem: str) -> SharedTierConfig:
    """By the files that an agent writes when it has enrolled."""
    folder.mkdir(exist_ok=True)
    (folder / "ca.crt").write_text(ca_pem)
    file = folder / "kv-shared.json"
    told = SharedAccess(login.url, login.user, login.password, login.fleet_secret)
    file.write_bytes(told.to_json())
    tier = read_terms(PrefixCacheConfig(shared_access=file)).tier
    assert tier is not None
    return tier


def rig_with(config: SharedTierConfig) -> Rig:
    return Rig(shared=SharedTier(config, sealer()))


async def test_blocks_go_from_device_to_device_and_each_touches_its_keyspace_only(
    cache: TlsCache, tmp_path: Path
) -> None:
    ca_pem = (cache.home.ca_dir / "ca.crt").read_text()
    configs = [
        as_an_engine_reads_it(tmp_path / name, await cache.login(name), ca_pem)
        for name in ("one", "two")
    ]
    assert all(config.url.startswith("rediss://device-") for config in configs)
    first = rig_with(configs[0])
    # On a busy machine the tier may be left alone for a while, and a fetch be given up.
    give_up_s = time.monotonic() + 3 * LIVENESS_S
    while first.cache.counters()["kv_shared_written"] < 3:
        assert time.monotonic() < give_up_s
        first.run(prompt(1, 2, 3))
        assert first.cache.drain(10)
    tiers: tuple[Tier, ...] = ()
    while tiers != (Tier.REDIS, Tier.REDIS):
        assert time.monotonic() < give_up_s
        second = rig_with(configs[1])
        tiers = second.run(prompt(1, 2, 9)).tiers
        second.stop()

    with shared_client(configs[0], timeout_s=5) as client:
        client.set(SHARED_KEY_PREFIX + "x", b"a block")
        for command in (
            ("SET", "other", "x"),
            ("GET", "shoal:api-keys"),
            ("DEL", SHARED_KEY_PREFIX + "x"),
            ("KEYS", "*"),
            ("SCAN", "0"),
            ("FLUSHALL",),
            ("CONFIG", "GET", "*"),
            ("ACL", "LIST"),
            ("EVAL", "return 1", "0"),
            ("SUBSCRIBE", "x"),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command)
    # One that was removed from the fleet is out at once, its open connections too.
    await cache.users.withdraw("one")
    first.run(prompt(5, 6))
    assert first.cache.drain(10)
    assert first.cache.sharing().not_shared in (NotShared.AUTH_FAILED, NotShared.UNREACHABLE)
    with shared_client(configs[0], timeout_s=5) as client, pytest.raises(redis.RedisError):
        client.get(SHARED_KEY_PREFIX + "x")
    first.stop()


async def test_nobody_is_believed_without_a_certificate_of_this_fleet_for_this_host(
    cache: TlsCache, tmp_path: Path
) -> None:
    login = await cache.login("one")
    foreign = Authority.load_or_create(tmp_path / "foreign").ca_pem
    ours = (cache.home.ca_dir / "ca.crt").read_text()
    # The certificate is not for this name, though it leads to the same place.
    renamed = replace(login, url=cache_server.cache_url(cache.port, "localhost"))
    for told, ca_pem in ((login, foreign), (renamed, ours)):
        rig = rig_with(as_an_engine_reads_it(tmp_path / "device", told, ca_pem))
        assert rig.run(prompt(1, 2)).blocks == ()
        assert rig.cache.drain(10)
        assert rig.run(prompt(1, 2)).tokens_by_tier() == {"host": 256}
        rig.stop()
    # No word without TLS.
    assert not cache_server.cache_answers(cache.port)
