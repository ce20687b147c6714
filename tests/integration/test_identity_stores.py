"""Tokens and keys on a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from orchestrator.identity.api_keys import Role, key_id_of, new_key
from orchestrator.identity.join_tokens import JoinToken
from orchestrator.identity.key_store_redis import KeyStore
from orchestrator.identity.token_store_redis import TokenStore
from orchestrator.setup import prepare_keys
from shoal.errors import Reason, ShoalError
from shoal.home import Home
from tests.harness.redis_server import running_redis

CA = "ab" * 32


class Clock:
    unix_ms = 1_000_000

    def __call__(self) -> int:
        return self.unix_ms


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_url, decode_responses=True)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokens(client: Redis, clock: Clock) -> TokenStore:
    return TokenStore(client, CA, clock)


async def denied(awaitable) -> str:
    with pytest.raises(ShoalError) as caught:
        await awaitable
    assert caught.value.reason is Reason.UNAUTHENTICATED
    return caught.value.message


async def test_exactly_one_of_fifty_racers_gets_the_token(client, tokens, redis_url):
    text = await tokens.create(60)
    # A connection for each racer, as different hubs would have.
    clients = [Redis.from_url(redis_url, decode_responses=True) for _ in range(50)]
    racers = [TokenStore(racer, CA, Clock()) for racer in clients]
    results = await asyncio.gather(
        *(racer.consume(text, f"d{n}") for n, racer in enumerate(racers)), return_exceptions=True
    )
    for racer in clients:
        await racer.aclose()
    winners = [n for n, result in enumerate(results) if result is None]
    losers = [result for result in results if result is not None]
    assert len(winners) == 1
    assert all(isinstance(loser, ShoalError) and "used" in loser.message for loser in losers)
    key = f"shoal:token:{JoinToken.parse(text).token_id}"
    assert await client.hget(key, "used_by") == f"d{winners[0]}"


async def test_used_token_stays_used(tokens):
    text = await tokens.create(60)
    await tokens.consume(text, "d1")
    assert "used" in await denied(tokens.consume(text, "d2"))
    assert "used" in await denied(tokens.consume(text, "d1"))


async def test_check_consumes_nothing(tokens):
    text = await tokens.create(60)
    await tokens.check(text)
    await tokens.check(text)
    await tokens.consume(text, "d1")


async def test_token_expires(tokens, clock):
    text = await tokens.create(60)
    clock.unix_ms += 60_000
    assert "expired" in await denied(tokens.consume(text, "d1"))


async def test_token_of_another_fleet_is_unknown(tokens, client):
    foreign = await TokenStore(client, "cd" * 32).create(60)
    assert "not one of this fleet" in await denied(tokens.consume(foreign, "d1"))
    assert "not one of this fleet" in await denied(tokens.consume(JoinToken.new(CA).text, "d1"))


async def test_released_token_works_again_and_only_its_holder_releases_it(tokens):
    text = await tokens.create(60)
    await tokens.consume(text, "d1")
    await tokens.release(text, "d2")
    assert "used" in await denied(tokens.consume(text, "d3"))
    await tokens.release(text, "d1")
    await tokens.consume(text, "d3")


@pytest.mark.parametrize("ttl_s", [0, -1, 31 * 86_400])
async def test_token_life_out_of_bounds_is_refused(tokens, ttl_s):
    with pytest.raises(ShoalError) as caught:
        await tokens.create(ttl_s)
    assert caught.value.param == "ttl_s"


async def test_secrets_are_not_stored_and_tokens_leave_redis_in_the_end(tokens, client):
    text = await tokens.create(60)
    key = await KeyStore(client).create("acme", "ci", Role.USER)
    secret = JoinToken.parse(text).secret
    for name in await client.keys("*"):
        row = f"{name} {await client.hgetall(name)}"
        assert secret not in row
        assert key not in row
    assert await client.ttl(f"shoal:token:{JoinToken.parse(text).token_id}") > 60


async def test_key_authenticates_as_its_tenant_and_role(client):
    keys = KeyStore(client)
    key = await keys.create("acme", "ci", Role.USER)
    admin = await keys.create("ops", "root", Role.ADMIN)
    principal = await keys.authenticate(key)
    assert (principal.tenant, principal.name, principal.role) == ("acme", "ci", Role.USER)
    assert principal.key_id not in key
    assert (await keys.authenticate(admin)).role is Role.ADMIN


async def test_unknown_revoked_and_missing_keys_are_denied(client):
    keys = KeyStore(client)
    key = await keys.create("acme", "ci", Role.USER)
    revoked = await keys.revoke(key_id_of(key))
    assert await keys.revoke(key_id_of(key)) == revoked
    for unknown in ("0" * 12, "", "*", key_id_of(key)[:11], key_id_of(key) + "0"):
        assert await keys.revoke(unknown) is None
    for candidate in (key, new_key(), "", None, "sk-shoal-*"):
        await denied(keys.authenticate(candidate))


async def test_keys_are_listed_by_their_ids_with_the_revoked(client, clock):
    keys = KeyStore(client, clock)
    old = await keys.create("acme", "ci", Role.USER)
    clock.unix_ms += 5
    new = await keys.create("ops", "root", Role.ADMIN)
    clock.unix_ms += 5
    await keys.revoke(key_id_of(old))
    listed = await keys.list()
    assert [(each.key_id, each.name, each.role) for each in listed] == [
        (key_id_of(old), "ci", Role.USER),
        (key_id_of(new), "root", Role.ADMIN),
    ]
    assert [each.created_unix_ms for each in listed] == [1_000_000, 1_000_005]
    assert [each.revoked_unix_ms for each in listed] == [1_000_010, None]


async def test_revoked_key_of_a_file_stays_revoked(client):
    keys = KeyStore(client)
    key = new_key()
    await keys.put(key, "default", "local", Role.USER)
    assert not await keys.is_revoked(key)
    await keys.revoke(key_id_of(key))
    await keys.put(key, "default", "local", Role.USER)
    assert await keys.is_revoked(key)
    await denied(keys.authenticate(key))


async def test_key_kept_in_a_file_is_made_known_again(client):
    keys = KeyStore(client)
    key = new_key()
    await keys.put(key, "default", "local", Role.USER)
    await keys.put(key, "default", "local", Role.USER)
    assert (await keys.authenticate(key)).tenant == "default"


async def test_revoked_key_of_the_state_directory_is_replaced_at_the_next_start(
    client, redis_url, tmp_path
):
    home, keys = Home(tmp_path), KeyStore(client)
    await prepare_keys(home, redis_url)
    old = home.default_key_file.read_text()
    await keys.revoke(key_id_of(old))
    await prepare_keys(home, redis_url)
    new = home.default_key_file.read_text()
    assert new != old
    assert home.default_key_file.stat().st_mode & 0o777 == 0o600
    assert (await keys.authenticate(new)).role is Role.USER
    await denied(keys.authenticate(old))
