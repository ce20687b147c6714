"""The shared tier against a real redis-server that evicts, hangs, refuses and goes away."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis
from structlog.testing import capture_logs

from agent.kv.fetching import Phase, Tier
from agent.kv.redis_tier import SharedTier
from agent.kv.sharing import NotShared, SharedTierConfig
from shoal.blocks import SHARED_KEY_PREFIX, shared_key, shared_tier_acl
from shoal.kv_sharing import SharePolicy
from tests.harness.kv_rig import LIVENESS_S, TENANT, Rig, prompt, right_bytes, sealer
from tests.harness.redis_server import running_redis

# Beyond the cold time (which the rig's engine does not spend); with the harness's own slack.
COST_LIMIT_S = 0.5
SLACK_S = 0.5


@pytest.fixture
def url() -> Iterator[str]:
    with running_redis() as started:
        yield started


def rig_on(url: str, policy: SharePolicy = SharePolicy.ALWAYS, secret: bytes | None = None) -> Rig:
    sealing = sealer() if secret is None else sealer(secret)
    return Rig(shared=SharedTier(SharedTierConfig(url, policy), sealing))


@contextmanager
def stopped_process(url: str) -> Iterator[None]:
    with redis.Redis.from_url(url) as client:
        pid = client.info("server")["process_id"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def wait_until_available(shared: SharedTier) -> None:
    give_up = time.monotonic() + LIVENESS_S
    while not shared.available:
        assert time.monotonic() < give_up, "the breaker never closed again"
        time.sleep(0.02)


def shared_of(rig: Rig) -> SharedTier:
    assert rig.shared is not None
    return rig.shared


def test_a_prefix_computed_on_one_agent_is_restored_on_another(url: str) -> None:
    first, second = rig_on(url), rig_on(url)
    first.run(prompt(1, 2, 3))
    assert first.cache.drain(5)
    restored = second.run(prompt(1, 2, 9))
    assert restored.tiers == (Tier.REDIS, Tier.REDIS)
    assert restored.decision is not None
    assert restored.decision.fetch
    assert second.run(prompt(1, 2, 9)).tokens_by_tier() == {"host": 384}
    first.stop()
    second.stop()


def test_a_shared_tier_is_replaced_while_the_old_one_hangs(url: str) -> None:
    with running_redis() as elsewhere:
        maker = rig_on(elsewhere)
        maker.run(prompt(1, 2))
        assert maker.cache.drain(5)
        rig = rig_on(url)
        rig.prefill_tokens_per_s = 0.1  # whoever waits for the old tier waits for long
        with stopped_process(url):
            seq, phase = rig.begin(prompt(1, 2))
            assert phase is Phase.RESTORING
            rig.cache.use_shared(shared_of(rig_on(elsewhere)))
            assert rig.cache.poll() == (seq,)
            assert rig.cache.take(seq).blocks == ()
            rig.cache.close(seq)
            # Who comes later asks the new one.
            assert rig.run(prompt(1, 2)).tiers == (Tier.REDIS, Tier.REDIS)
        rig.cache.use_shared(None)
        assert rig.cache.sharing().not_shared is NotShared.NO_SHARED_TIER
        assert rig.run(prompt(7)).blocks == ()
        rig.cache.check_integrity()
        rig.stop()
        maker.stop()


def test_requests_that_arrive_together_fetch_a_prefix_once(url: str) -> None:
    first, second = rig_on(url), rig_on(url)
    first.run(prompt(1, 2, 3))
    assert first.cache.drain(5)
    started = [second.begin(prompt(1, 2, 3)) for _ in range(5)]
    assert [phase for _, phase in started] == [Phase.RESTORING] + [Phase.WAITING] * 4
    ready: set[int] = set()
    give_up = time.monotonic() + LIVENESS_S
    while len(ready) < 5:
        assert time.monotonic() < give_up
        second.awake.wait(0.2)
        ready.update(second.cache.poll())
    assert all(second.cache.take(seq).num_tokens == 384 for seq, _ in started)
    assert shared_of(second).counters.hits == 3
    first.stop()
    second.stop()


def test_another_fleets_secret_and_another_tenant_restore_nothing(url: str) -> None:
    first = rig_on(url)
    first.run(prompt(1))
    assert first.cache.drain(5)
    foreign = rig_on(url, secret=b"another fleet's secret")
    with capture_logs():
        assert foreign.run(prompt(1)).num_tokens == 0
    assert shared_of(foreign).counters.damaged == 1
    other = rig_on(url)
    assert other.run(prompt(1, tenant=b"b"), tenant=b"b").num_tokens == 0
    assert shared_of(other).counters.damaged == 0
    for rig in (first, foreign, other):
        rig.stop()


@pytest.mark.parametrize(
    ("policy", "keys_after"),
    [
        (SharePolicy.ALWAYS, [1, 1]),
        (SharePolicy.ON_SECOND_USE, [0, 1]),
        (SharePolicy.NEVER, [0, 0]),
    ],
)
def test_the_policy_decides_when_a_block_leaves(
    url: str, policy: SharePolicy, keys_after: list[int]
) -> None:
    rig = rig_on(url, policy)
    seen = []
    with redis.Redis.from_url(url) as client:
        for _ in range(2):
            rig.run(prompt(1))
            assert rig.cache.drain(5)
            seen.append(client.dbsize())
    assert seen == keys_after
    counted = rig.cache.counters().get("kv_not_shared_policy_never", 0)
    assert (counted > 0) == (policy is SharePolicy.NEVER)
    assert rig.cache.shares == (policy is not SharePolicy.NEVER)
    rig.stop()


def test_the_reason_why_blocks_stay_is_named_and_counted(url: str) -> None:
    alone = Rig()
    alone.run(prompt(1))
    assert alone.cache.sharing().not_shared is NotShared.NO_SHARED_TIER
    assert alone.cache.counters()["kv_not_shared_no_shared_tier"] == 1
    alone.stop()
    denied = rig_on(url.replace("unix://", "unix://nobody:wrong@"))
    with capture_logs():
        denied.run(prompt(1))
        assert denied.cache.drain(5)
        denied.run(prompt(2))
        state = denied.cache.sharing()
        denied.stop()
    assert state.not_shared is NotShared.AUTH_FAILED
    gone = rig_on("unix:///nowhere")
    with capture_logs():
        for number in range(3):
            gone.run(prompt(number))
            gone.cache.drain(5)
        assert gone.cache.sharing().not_shared is NotShared.UNREACHABLE
        assert gone.cache.counters()["kv_not_shared_unreachable"] > 0
        gone.stop()


def test_the_write_limit_holds_and_what_it_costs_is_named(url: str) -> None:
    block_bytes = sealer().sealed_bytes
    limit = 4 * block_bytes
    config = SharedTierConfig(url, write_bytes_per_s=limit, queue_bytes=2 * block_bytes)
    rig = Rig(shared=SharedTier(config, sealer()))
    started = time.monotonic()
    rig.run(prompt(*range(12)))
    rig.cache.drain(10)
    elapsed_s = time.monotonic() - started
    figures = rig.cache.counters()
    assert figures["kv_shared_bytes_written"] <= limit * (1 + elapsed_s)
    assert figures["kv_not_shared_write_limit"] == figures["kv_shared_dropped"] > 0
    assert rig.cache.sharing().not_shared is NotShared.WRITE_LIMIT
    rig.stop()


def test_a_request_that_must_not_share_neither_reads_nor_writes(url: str) -> None:
    rig = rig_on(url)
    rig.run(prompt(1), share=False)
    assert rig.cache.drain(5)
    with redis.Redis.from_url(url) as client:
        assert client.dbsize() == 0
    rig.stop()


def test_evicted_blocks_are_misses_and_the_prefix_before_them_still_counts(url: str) -> None:
    first, second = rig_on(url), rig_on(url)
    first.run(prompt(1, 2, 3, 4))
    assert first.cache.drain(5)
    with redis.Redis.from_url(url) as client:
        client.delete(shared_key(prompt(1, 2, 3)[2]))
    assert second.run(prompt(1, 2, 3, 4)).num_tokens == 256
    first.stop()
    second.stop()


def test_a_small_redis_that_evicts_by_lru_never_fails_a_request(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("maxmemory", str(client.info("memory")["used_memory"] + 2_000_000))
        for number in range(600):
            client.set(f"older:{number}", bytes(4000))
    rig = rig_on(url)
    for number in range(200):
        rig.run(prompt(number, 1))
        rig.cache.drain(5)
    counters = shared_of(rig).counters
    assert counters.written == 400
    assert (counters.failures, counters.refused_full) == (0, 0)
    with redis.Redis.from_url(url) as client:
        assert client.info("stats")["evicted_keys"] > 0
    rig.stop()


def test_a_full_redis_that_refuses_writes_is_still_read(url: str) -> None:
    first, second = rig_on(url), rig_on(url)
    first.run(prompt(1))
    assert first.cache.drain(5)
    with redis.Redis.from_url(url) as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1")
    with capture_logs() as logs:
        assert second.run(prompt(1, 2, 3)).num_tokens == 128
        assert second.cache.drain(5)
    assert [entry["event"] for entry in logs] == ["kv_shared_tier_full"]
    assert shared_of(second).available
    first.stop()
    second.stop()


def test_a_hung_redis_costs_one_request_the_limit_and_the_next_nothing(url: str) -> None:
    rig = rig_on(url)
    rig.run(prompt(1))
    assert rig.cache.drain(5)
    with capture_logs(), stopped_process(url):
        started = time.monotonic()
        assert rig.run(prompt(2, 3)).num_tokens == 0
        assert time.monotonic() - started < COST_LIMIT_S + SLACK_S
        seq, phase = rig.begin(prompt(4, 5))
        assert phase is Phase.READY
        rig.cache.close(seq)
    with capture_logs():
        wait_until_available(shared_of(rig))
    rig.run(prompt(6))
    assert rig.cache.drain(10)
    fresh = rig_on(url)
    assert fresh.run(prompt(6)).tiers == (Tier.REDIS,)
    fresh.stop()
    rig.stop()


def test_a_redis_that_hangs_between_count_and_fetch_is_given_up_too(url: str) -> None:
    first, second = rig_on(url), rig_on(url)
    first.run(prompt(*range(8)))
    assert first.cache.drain(5)
    seq, phase = second.begin(prompt(*range(8)))
    assert phase is Phase.RESTORING
    assert second.awake.wait(LIVENESS_S)
    with capture_logs(), stopped_process(url):
        started = time.monotonic()
        second.wait_ready(seq)
        assert time.monotonic() - started < COST_LIMIT_S + SLACK_S + 8 * 128 / 700
        second.cache.take(seq)
        second.cache.close(seq)
        second.cache.check_integrity()
    first.stop()
    second.stop()


def test_a_redis_that_is_away_costs_no_error_and_comes_back_by_itself() -> None:
    with running_redis() as gone:
        pass
    rig = rig_on(gone)
    with capture_logs():
        for number in range(5):
            started = time.monotonic()
            assert rig.run(prompt(number)).num_tokens == 0
            assert time.monotonic() - started < COST_LIMIT_S + SLACK_S
    assert not shared_of(rig).available
    rig.stop()


@pytest.fixture
def limited(url: str) -> str:
    password = "an agent's own password"
    digest = hashlib.sha256(password.encode()).hexdigest()
    with redis.Redis.from_url(url) as client:
        client.execute_command("ACL", "SETUSER", *shared_tier_acl("agent-1", digest))
    return f"{url}?username=agent-1&password={password.replace(' ', '+')}"


def test_an_agents_user_is_enough_for_the_tier_and_good_for_nothing_else(
    url: str, limited: str
) -> None:
    first, second = rig_on(limited), rig_on(limited)
    first.run(prompt(1, 2))
    assert first.cache.drain(5)
    assert second.run(prompt(1, 2)).tiers == (Tier.REDIS, Tier.REDIS)
    assert shared_of(first).counters.failures == shared_of(second).counters.failures == 0
    with redis.Redis.from_url(limited, protocol=2) as client:
        for command in (
            ("SET", "shoal:key:x", "1"),
            ("GET", "shoal:device:x"),
            ("KEYS", "*"),
            ("FLUSHALL",),
            ("CONFIG", "GET", "*"),
            ("DEL", SHARED_KEY_PREFIX + "x"),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command)
    first.stop()
    second.stop()


def test_wrong_credentials_switch_the_tier_off_without_an_error(url: str, limited: str) -> None:
    rig = rig_on(limited.replace("an+agent", "no+agent"))
    with capture_logs() as logs:
        started = time.monotonic()
        assert rig.run(prompt(1)).num_tokens == 0
        assert time.monotonic() - started < COST_LIMIT_S + SLACK_S
    assert any(entry["event"] == "kv_shared_tier_off" for entry in logs)
    assert not shared_of(rig).available
    rig.stop()


def test_a_slow_link_is_measured_and_then_left_alone(url: str) -> None:
    first, second = rig_on(url), rig_on(url)
    first.run(prompt(1, 2))
    assert first.cache.drain(5)
    shared_of(second).fetched(num_bytes=1000, seconds=1.0)
    restored = second.run(prompt(1, 2))
    assert restored.num_tokens == 0
    assert restored.decision is not None
    assert not restored.decision.fetch
    assert restored.decision.fetch_ms is not None
    assert restored.decision.fetch_ms > restored.decision.recompute_ms
    first.stop()
    second.stop()


def test_no_block_lies_readable_in_redis(url: str) -> None:
    rig = rig_on(url)
    (block,) = prompt(1)
    rig.run(prompt(1))
    assert rig.cache.drain(5)
    with redis.Redis.from_url(url) as client:
        value = client.get(shared_key(block))
    assert isinstance(value, bytes)
    assert right_bytes(block).tobytes()[:64] not in value
    assert TENANT not in value
    rig.stop()
