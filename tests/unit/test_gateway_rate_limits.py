"""Tenants' limits a minute: the bucket itself, and what the gateway draws from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ConnectionError as RedisGone

from orchestrator.gateway.rate_limits import CACHE_S, RateLimits
from orchestrator.identity.tenants import Defaults, Rates, TenantPolicy
from orchestrator.queueing.token_bucket import TokenBucket
from orchestrator.request import Objective, Privacy
from shoal.errors import Reason, ShoalError
from shoal.openai.outcome import Outcome
from shoal.v1 import inference_pb2 as pb


class Policies:
    def __init__(self, **rates: Rates) -> None:
        self.rates = rates
        self.defaults: dict[str, Defaults] = {}
        self.asked = 0
        self.gone = False

    async def policy(self, tenant: str) -> TenantPolicy | None:
        self.asked += 1
        if self.gone:
            raise RedisGone("gone")
        rates = self.rates.get(tenant)
        defaults = self.defaults.get(tenant, Defaults())
        return None if rates is None else TenantPolicy(Privacy.ANY, rates=rates, defaults=defaults)


class Rig:
    def __init__(self, num_gateways: int = 1, **rates: Rates) -> None:
        self.now_s = 100.0
        self.policies = Policies(**rates)
        self.limits = RateLimits(self.policies, num_gateways, lambda: self.now_s)

    async def refused(self, tenant: str = "t", max_tokens: int = 10) -> ShoalError | None:
        try:
            await self.limits.admit(tenant, [request(max_tokens)])
        except ShoalError as error:
            return error
        return None


def request(max_tokens: int | None = 10) -> pb.GenerateRequest:
    return pb.GenerateRequest(request_id="r", model="m", text="hi", max_tokens=max_tokens)


@given(
    st.floats(0.5, 1e6),
    st.lists(st.tuples(st.floats(0, 30), st.floats(0, 2)), max_size=60),
)
def test_no_time_sees_more_than_the_limit_and_one_minutes_worth(
    per_minute: float, steps: list[tuple[float, float]]
) -> None:
    bucket, now_s, drawn = TokenBucket(per_minute, 0.0), 0.0, 0.0
    for pause_s, share in steps:
        now_s += pause_s
        amount = share * per_minute / 2
        if bucket.wait_s(amount, now_s) == 0:
            bucket.draw(amount)
            drawn += amount
        assert drawn <= per_minute * (1 + now_s / 60) * (1 + 1e-9) + 1e-6


def test_waiting_as_long_as_told_is_enough_and_no_longer_than_needed() -> None:
    bucket = TokenBucket(60.0, 0.0)
    bucket.draw(60.0)
    wait_s = bucket.wait_s(10.0, 0.0)
    assert wait_s == pytest.approx(10.0)
    assert bucket.wait_s(10.0, wait_s - 0.1) > 0
    assert bucket.wait_s(10.0, wait_s + 1e-9) == 0


def test_more_than_the_bucket_holds_passes_when_it_is_full_and_leaves_a_debt() -> None:
    bucket = TokenBucket(60.0, 0.0)
    assert bucket.wait_s(180.0, 0.0) == 0
    bucket.draw(180.0)
    assert bucket.wait_s(1.0, 0.0) == pytest.approx(121.0)


async def test_limit_of_nothing_lets_nothing_pass() -> None:
    rig = Rig(t=Rates(requests_per_minute=0))
    error = await rig.refused()
    assert error is not None
    assert error.retry_after_ms == 60_000


async def test_tenant_without_limits_is_never_refused_and_asked_for_seldom() -> None:
    rig = Rig()
    for _ in range(100):
        assert await rig.refused() is None
    assert rig.policies.asked == 1


async def test_requests_beyond_the_limit_are_refused_with_a_time_to_retry() -> None:
    rig = Rig(t=Rates(requests_per_minute=3))
    assert [await rig.refused() for _ in range(3)] == [None] * 3
    error = await rig.refused()
    assert error is not None
    assert (error.reason, error.http_status) == (Reason.RATE_LIMITED, 429)
    assert error.retry_after_ms == pytest.approx(20_000, abs=2)
    assert "3 requests per minute" in error.message
    assert await rig.refused("other") is None
    rig.now_s += 20.001
    assert await rig.refused() is None


async def test_tokens_are_drawn_as_expected_and_settled_as_counted() -> None:
    rig = Rig(t=Rates(tokens_per_minute=1_000, weight=2.0))
    grant = await rig.limits.admit("t", [request(900)])
    assert grant.weight == 2.0
    assert await rig.refused(max_tokens=500) is not None
    outcome = Outcome("r", "edge")
    outcome.placed = pb.Placed()
    outcome.finished = pb.Finished(usage=pb.Usage(prompt_tokens=40, completion_tokens=60))
    rig.limits.settle(grant, [outcome])
    assert await rig.refused(max_tokens=800) is None
    assert await rig.refused(max_tokens=200) is not None


async def test_answer_that_was_left_costs_what_was_drawn_and_one_never_placed_nothing() -> None:
    rig = Rig(t=Rates(tokens_per_minute=1_000))
    grant = await rig.limits.admit("t", [request(900)])
    left = Outcome("r", "edge")
    left.placed = pb.Placed()
    rig.limits.settle(grant, [left])
    assert await rig.refused(max_tokens=500) is not None
    rig.limits.settle(grant, [Outcome("r", "edge")])
    assert await rig.refused(max_tokens=500) is None


async def test_changed_limit_applies_within_seconds_and_forgives_nothing() -> None:
    rig = Rig(t=Rates(requests_per_minute=2))
    assert [await rig.refused() for _ in range(2)] == [None] * 2
    rig.policies.rates["t"] = Rates(requests_per_minute=3)
    rig.now_s += CACHE_S
    assert await rig.refused() is None
    assert await rig.refused() is not None
    del rig.policies.rates["t"]
    rig.now_s += CACHE_S
    assert await rig.refused() is None


async def test_limits_stay_while_redis_is_away() -> None:
    rig = Rig(t=Rates(requests_per_minute=1))
    assert await rig.refused() is None
    rig.policies.gone = True
    rig.now_s += CACHE_S
    assert await rig.refused() is not None


async def test_several_gateways_share_a_limit() -> None:
    rig = Rig(num_gateways=2, t=Rates(requests_per_minute=4))
    assert [await rig.refused() for _ in range(2)] == [None] * 2
    error = await rig.refused()
    assert error is not None
    assert "4 requests" in error.message


async def test_tenants_wishes_hold_where_its_request_states_none() -> None:
    rig = Rig(t=Rates(weight=2.0))
    rig.policies.defaults["t"] = Defaults(Objective.EDP, 3.0)
    silent, stated = request(), request()
    stated.hints.objective = pb.OBJECTIVE_LATENCY
    stated.hints.hedge_after = 0.0
    grant = await rig.limits.admit("t", [silent, stated])
    grant.apply(silent)
    grant.apply(stated)
    assert silent.tenant_weight == 2.0
    assert (silent.hints.objective, silent.hints.hedge_after) == (pb.OBJECTIVE_EDP, 3.0)
    assert (stated.hints.objective, stated.hints.hedge_after) == (pb.OBJECTIVE_LATENCY, 0.0)


async def test_tenant_without_a_policy_leaves_requests_as_they_are() -> None:
    message = request()
    (await Rig().limits.admit("t", [message])).apply(message)
    assert message == pb.GenerateRequest(
        request_id="r", model="m", text="hi", max_tokens=10, tenant_weight=1.0
    )
