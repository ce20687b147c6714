"""Each fault of a cloud endpoint has its documented behaviour, and nothing hangs."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from redis.asyncio import Redis

from orchestrator.dispatch.breaker import BreakerLimits
from orchestrator.dispatch.cloud import CloudBackend, CloudGeneration
from orchestrator.dispatch.detector import NoScreen
from orchestrator.dispatch.endpoint import (
    CloudConfig,
    CloudEndpoint,
    CloudModel,
    RetryLimits,
    Salt,
    Timeouts,
)
from orchestrator.dispatch.outbound import OutboundGate
from orchestrator.dispatch.prices import Price
from orchestrator.dispatch.spending import Spending
from orchestrator.fleet.registry_redis import connect
from orchestrator.identity.authority import Authority
from orchestrator.identity.tenants import Budgets, TenantPolicy
from orchestrator.identity.tenants_redis import TenantStore
from orchestrator.request import Privacy
from shoal.errors import Reason, ShoalError
from shoal.openai.outcome import Outcome
from shoal.v1 import inference_pb2 as pb
from tests.harness.cloud_upstream import (
    DONE,
    GOOD,
    Script,
    Upstream,
    chunk,
    endless,
    hang_up,
    one_after_another,
    refuse,
    running_upstream,
    silent,
    stream,
    text_chunk,
    usage_chunk,
)
from tests.harness.ports import free_port
from tests.harness.redis_server import paused_redis, running_redis

MODEL = "big-70b"
PRICE = Price(Decimal(2), Decimal(8))
LIVENESS_S = 10.0
PATIENT = Timeouts(connect_s=5, first_byte_s=8, chunk_s=8, total_s=9)
# Only what a fault has to run into is short: a loaded machine must not reach another limit first.
SHORT = {
    "first_byte_timeout": replace(PATIENT, first_byte_s=0.4),
    "chunk_timeout": replace(PATIENT, chunk_s=0.4, total_s=2),
}
QUICK = RetryLimits(max_tries=2, max_wait_s=0.5, first_pause_s=0.01)


@pytest.fixture(scope="module")
def state_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture
async def state(state_url: str) -> AsyncIterator[Redis]:
    client = connect(state_url)
    await client.flushall()
    await TenantStore(client).put("acme", TenantPolicy(Privacy.ANY))
    yield client
    await client.aclose()


def endpoint(url: str, name: str = "vendor", **changes: object) -> CloudEndpoint:
    models = (CloudModel(MODEL, "vendor/big", 70 * 10**9, price=PRICE),)
    values = {"models": models, "key": "sk-up", "timeouts": PATIENT, **changes}
    return CloudEndpoint(name, url, **values)  # type: ignore[arg-type]


@asynccontextmanager
async def backend_of(
    state: Redis, *endpoints: CloudEndpoint, retry: RetryLimits = QUICK
) -> AsyncIterator[CloudBackend]:
    tenants = TenantStore(state)
    config = CloudConfig(endpoints, retry=retry, default_max_tokens=200)
    backend = CloudBackend(config, OutboundGate(tenants, NoScreen()), Spending(tenants, config))
    try:
        yield backend
    finally:
        await backend.close()


def ask(max_tokens: int | None = 50, tenant: str = "acme") -> pb.GenerateRequest:
    request = pb.GenerateRequest(request_id="r1", model=MODEL, tenant=tenant, max_tokens=max_tokens)
    request.chat.messages.add(role="user", content="Name three fish. " * 4)
    return request


async def read(generation: CloudGeneration) -> tuple[str, pb.SequenceUpdate]:
    """All text and the terminal update; fails when it does not end."""
    text = ""
    async with asyncio.timeout(LIVENESS_S):
        while True:
            updates: Sequence[pb.SequenceUpdate] = await generation.take()
            text += "".join(update.delta.text for update in updates)
            if updates[-1].HasField("finished") or updates[-1].HasField("failed"):
                return text, updates[-1]


async def one_answer(
    state: Redis,
    script: Script,
    request: pb.GenerateRequest | None = None,
    timeouts: Timeouts = PATIENT,
) -> tuple[str, pb.SequenceUpdate, CloudGeneration, Upstream]:
    async with running_upstream() as upstream:
        upstream.script = script
        async with backend_of(state, endpoint(upstream.url, timeouts=timeouts)) as backend:
            generation = backend.start(request or ask())
            return (*await read(generation), generation, upstream)


HUGE = "data: " + "x" * (1024 * 1024 + 10)
FAULTS = [
    (silent, "first_byte_timeout"),
    (hang_up, "broke_off"),
    (stream(hangs=True), "first_byte_timeout"),
    # Comments and bytes without an event are no progress.
    (endless(": keep-alive\n\n", 0.05), "first_byte_timeout"),
    (endless("x", 0.05), "first_byte_timeout"),
    # Events without text are, but the whole has an end.
    (endless(chunk(choices=[]), 0.1), "chunk_timeout"),
    (refuse(500), "server_error (500)"),
    (refuse(418), "server_error (418)"),
    (refuse(401), "refused_key (401)"),
    (refuse(307, location="http://127.0.0.1:9/"), "redirected (307)"),
    (stream(*GOOD, content_type="application/json"), "wrong_content_type"),
    (stream(*GOOD, content_encoding="gzip"), "wrong_content_type"),
    (stream("data: {nonsense\n\n"), "malformed_answer"),
    (stream("data: [1]\n\n"), "malformed_answer"),
    (stream("data: " + "[" * 100_000 + "\n\n"), "malformed_answer"),
    (stream('data: {"choices":[{"delta":{"content":7}}]}\n\n'), "malformed_answer"),
    (stream('data: {"choices":[{"delta":{"content":"\\ud800"}}]}\n\n'), "malformed_answer"),
    (stream(HUGE), "oversized_answer"),
    (stream(HUGE + "\n\n"), "oversized_answer"),
    (stream('data: {"error": "overheated"}\n\n'), "server_error"),
    (stream(), "broke_off"),
    (stream(cut=True), "broke_off"),
    (stream(chunk(choices=[{"delta": {}, "finish_reason": "tool_calls"}]), DONE), "called_a_tool"),
]


@pytest.mark.parametrize(("script", "note"), FAULTS, ids=[note for _, note in FAULTS])
async def test_fault_before_the_first_token_moves_on_to_the_next_endpoint(
    state: Redis, script: Script, note: str
) -> None:
    async with running_upstream() as bad, running_upstream() as good:
        bad.script = script
        first = endpoint(bad.url, "bad", timeouts=SHORT.get(note, PATIENT))
        second = endpoint(good.url, "good", priority=1)
        async with backend_of(state, first, second) as backend:
            generation = backend.start(ask())
            text, last = await read(generation)
            assert text == "From above"
            assert last.finished.reason == pb.Finished.REASON_STOP
            tries = generation.account.tries
            assert [(t.endpoint, t.failed) for t in tries] == [("bad", note), ("good", "")]
            assert bad.num_connections == 1


@pytest.mark.parametrize(
    ("script", "note"),
    [
        (stream(text_chunk("From"), cut=True), "broke_off"),
        (stream(text_chunk("From")), "broke_off"),
        (stream(text_chunk("From"), hangs=True), "chunk_timeout"),
        (stream(text_chunk("From"), "data: {nonsense\n\n"), "malformed_answer"),
    ],
)
async def test_fault_after_the_first_token_ends_the_answer_and_is_charged(
    state: Redis, script: Script, note: str
) -> None:
    text, last, generation, upstream = await one_answer(
        state, script, timeouts=SHORT.get(note, PATIENT)
    )
    assert text == "From"
    assert ShoalError.from_wire(last.failed).reason is Reason.UPSTREAM
    assert [t.failed for t in generation.account.tries] == [note]
    assert len(upstream.bodies) == 1
    use = generation.account.uses["cloud"]
    assert use.prompt_tokens > 0
    assert use.completion_tokens >= 1
    assert (await TenantStore(state).spent("acme"))["tokens_per_day"] == (
        use.prompt_tokens + use.completion_tokens
    )


async def test_endpoint_that_is_down_is_not_asked_again_until_its_rest_is_over(
    state: Redis,
) -> None:
    dead = endpoint(f"http://127.0.0.1:{free_port()}/v1", breaker=BreakerLimits(failures_to_open=2))
    async with backend_of(state, dead) as backend:
        generation = backend.start(ask())
        _, last = await read(generation)
        assert [t.failed for t in generation.account.tries] == ["down", "down"]
        assert "unreachable" in last.failed.message
        again = backend.start(ask())
        _, last = await read(again)
        assert again.account.tries == []
        error = ShoalError.from_wire(last.failed)
        assert error.reason is Reason.UPSTREAM
        assert 0 < error.retry_after_ms <= 2_000
        assert again.account.uses == {}
    assert (await TenantStore(state).spent("acme"))["tokens_per_day"] == 0


async def test_retry_after_is_waited_for_when_it_is_short(state: Redis) -> None:
    script = one_after_another(refuse(429, retry_after="0.2"), stream(*GOOD))
    started_s = time.monotonic()
    text, _, generation, upstream = await one_answer(state, script)
    assert text == "From above"
    assert time.monotonic() - started_s >= 0.2
    assert [t.failed for t in generation.account.tries] == ["rate_limited (429)", ""]
    assert len(upstream.bodies) == 2


async def test_long_retry_after_is_the_clients_to_wait_for(state: Redis) -> None:
    text, last, _, upstream = await one_answer(state, refuse(429, retry_after="30"))
    error = ShoalError.from_wire(last.failed)
    assert (text, error.reason) == ("", Reason.OVERLOADED)
    assert 29_000 < error.retry_after_ms <= 30_000
    assert len(upstream.bodies) == 1


async def test_impatient_request_does_not_wait(state: Redis) -> None:
    async with running_upstream() as upstream:
        upstream.script = refuse(429, retry_after="0.2")
        async with backend_of(state, endpoint(upstream.url)) as backend:
            await read(backend.start(ask(), patient=False))
            assert len(upstream.bodies) == 1


async def test_endpoints_own_words_reach_the_client_only(
    state: Redis, capfd: pytest.CaptureFixture[str]
) -> None:
    _, last, generation, upstream = await one_answer(state, refuse(400, "bad: Name three fish"))
    error = ShoalError.from_wire(last.failed)
    assert (error.reason, error.message) == (
        Reason.INVALID_ARGUMENT,
        "The cloud endpoint refused: bad: Name three fish",
    )
    assert len(upstream.bodies) == 1
    assert [t.failed for t in generation.account.tries] == ["refused_request (400)"]
    assert "three fish" not in "".join(capfd.readouterr())


async def test_ignore_eos_goes_to_servers_of_the_fleets_own_only(state: Redis) -> None:
    request = ask()
    request.ignore_eos = True
    async with running_upstream() as stranger, running_upstream() as ours:
        theirs = endpoint(stranger.url, "a")
        async with backend_of(state, theirs) as backend:
            _, last = await read(backend.start(request))
            assert last.failed.param == "ignore_eos"
            assert ShoalError.from_wire(last.failed).reason is Reason.INVALID_ARGUMENT
        second = endpoint(ours.url, "b", priority=1, salt=Salt.CACHE_SALT)
        async with backend_of(state, theirs, second) as backend:
            text, _ = await read(backend.start(request))
            assert text == "From above"
        assert not stranger.bodies
        assert ours.bodies[0]["ignore_eos"] is True


@pytest.mark.parametrize("trusted", [True, False])
async def test_certificate_must_be_trusted(state: Redis, tmp_path: Path, trusted: bool) -> None:
    authority = Authority.load_or_create(tmp_path / "ca")
    key, cert = authority.issue_service("hub:cloud", ("localhost",))
    for name, text in (("key", key), ("cert", cert)):
        (tmp_path / name).write_text(text)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    async with running_upstream(context) as upstream:
        url = f"https://localhost:{upstream.port}/v1"
        ca_file = tmp_path / "ca" / "ca.crt" if trusted else None
        async with backend_of(state, endpoint(url, ca_file=ca_file)) as backend:
            generation = backend.start(ask())
            text, last = await read(generation)
            assert bool(upstream.received) == trusted
            if trusted:
                assert text == "From above"
            else:
                assert "TLS" in last.failed.message
                assert {t.failed for t in generation.account.tries} == {"tls_failed"}


async def test_filtered_answer_says_so(state: Redis) -> None:
    parts = [text_chunk("From"), text_chunk("", "content_filter"), usage_chunk(9, 1), DONE]
    text, last, _, _ = await one_answer(state, stream(*parts))
    assert text == "From"
    assert last.finished.reason == pb.Finished.REASON_CONTENT_FILTER
    outcome = Outcome("r1", "cloud")
    outcome.take(last)
    assert outcome.finish_reason == "content_filter"


@pytest.mark.parametrize(
    ("claims", "flag"),
    [
        ([], "usage_missing"),
        ([usage_chunk(0, 0)], "usage_under_reported"),
        ([usage_chunk(20, 10**12)], "usage_over_reported"),
        ([usage_chunk(-5, "many")], "usage_missing"),
    ],
)
async def test_false_usage_is_flagged_and_counted_within_reason(
    state: Redis, claims: list[str], flag: str
) -> None:
    parts = [text_chunk("From"), text_chunk(" above", "stop"), *claims, DONE]
    _, last, generation, _ = await one_answer(state, stream(*parts))
    use = generation.account.uses["cloud"]
    assert use.flags == (flag,)
    assert 5 <= use.prompt_tokens <= 400
    assert 2 <= use.completion_tokens <= 50
    assert last.finished.usage.completion_tokens == use.completion_tokens
    assert use.cost_nanos == PRICE.cost_nanos(use.prompt_tokens, use.completion_tokens)


async def test_answer_past_max_tokens_is_cut_off(state: Redis) -> None:
    text, last, generation, upstream = await one_answer(
        state, endless(text_chunk("a "), 0.0), ask(max_tokens=10)
    )
    assert text == "a " * 10
    assert last.finished.reason == pb.Finished.REASON_LENGTH
    use = generation.account.uses["cloud"]
    assert use.completion_tokens == 10
    assert "max_tokens_overrun" in use.flags
    async with asyncio.timeout(LIVENESS_S):
        await upstream.gone.wait()


async def put_budget(state: Redis, **limits: int) -> TenantStore:
    store = TenantStore(state)
    await store.put("acme", TenantPolicy(Privacy.ANY, Budgets(**limits)))
    return store


@pytest.mark.parametrize(
    ("limits", "budget"),
    [
        ({"tokens_per_day": 60}, "tokens_per_day"),
        ({"tokens_per_month": 60}, "tokens_per_month"),
        ({"nanos_per_day": 1000}, "money_per_day"),
        ({"nanos_per_month": 1000}, "money_per_month"),
    ],
)
async def test_spent_budget_is_refused_by_name_and_nothing_is_sent(
    state: Redis, limits: dict[str, int], budget: str
) -> None:
    store = await put_budget(state, **limits)
    _, last, _, upstream = await one_answer(state, stream(*GOOD))
    error = ShoalError.from_wire(last.failed)
    assert (error.reason, error.http_status) == (Reason.BUDGET_EXCEEDED, 402)
    assert budget in error.message
    assert not upstream.received
    assert (await store.spent("acme"))["tokens_per_day"] == 0


async def test_reservation_is_settled_to_what_was_used(state: Redis) -> None:
    store = await put_budget(state, tokens_per_day=10_000, nanos_per_month=10**9)
    parts = [text_chunk("From"), text_chunk(" above", "stop"), usage_chunk(20, 2), DONE]
    _, _, generation, upstream = await one_answer(state, stream(*parts), ask(max_tokens=None))
    # A budget needs a bound.
    assert upstream.bodies[0]["max_tokens"] == 200
    assert generation.account.uses["cloud"].cost_nanos == 56_000
    spent = await store.spent("acme")
    assert spent == {
        "tokens_per_day": 22,
        "tokens_per_month": 22,
        "nanos_per_day": 56_000,
        "nanos_per_month": 56_000,
    }


async def test_requests_at_once_do_not_pass_a_budget_together(state: Redis) -> None:
    store = await put_budget(state, tokens_per_day=1_000)
    async with running_upstream() as upstream:
        upstream.script = stream(*GOOD, pause_s=0.02)
        async with backend_of(state, endpoint(upstream.url)) as backend:
            ends = await asyncio.gather(*(read(backend.start(ask())) for _ in range(40)))
            refused = [last for _, last in ends if last.HasField("failed")]
            # Each reserves 50 and its prompt, about 110 together.
            assert 40 - 1_000 // 70 <= len(refused) <= 40 - 1_000 // 150
            assert {f.failed.reason for f in refused} == {pb.FAILURE_REASON_BUDGET_EXCEEDED}
            assert len(upstream.bodies) == 40 - len(refused)
    assert (await store.spent("acme"))["tokens_per_day"] <= 1_000


async def test_cancelled_answer_is_charged_for_what_came(state: Redis) -> None:
    store = await put_budget(state, tokens_per_day=10_000)
    async with running_upstream() as upstream:
        upstream.script = stream(text_chunk("From"), hangs=True)
        async with backend_of(state, endpoint(upstream.url)) as backend:
            generation = backend.start(ask())
            text = ""
            async with asyncio.timeout(LIVENESS_S):
                while not text:
                    text = "".join(u.delta.text for u in await generation.take())
            generation.cancel()
            async with asyncio.timeout(LIVENESS_S):
                await upstream.gone.wait()
    # Less than was reserved, more than nothing.
    assert 20 < (await store.spent("acme"))["tokens_per_day"] < 50


async def test_model_without_a_price_is_closed_to_money_budgets(state: Redis) -> None:
    await put_budget(state, nanos_per_day=10**12)
    async with running_upstream() as upstream:
        unpriced = endpoint(upstream.url, models=(CloudModel(MODEL, "big", 10**10),))
        async with backend_of(state, unpriced) as backend:
            _, last = await read(backend.start(ask()))
    assert last.failed.reason == pb.FAILURE_REASON_BUDGET_EXCEEDED
    assert "no price" in last.failed.message
    assert not upstream.received


async def test_nothing_is_sent_while_redis_hangs(state: Redis, state_url: str) -> None:
    async with (
        running_upstream() as upstream,
        backend_of(state, endpoint(upstream.url)) as backend,
    ):
        with paused_redis(state_url):
            _, last = await read(backend.start(ask()))
        error = ShoalError.from_wire(last.failed)
        assert (error.reason, error.http_status) == (Reason.NO_DEVICE, 503)
        assert not upstream.received


async def test_key_goes_to_its_own_endpoint_only(state: Redis) -> None:
    async with running_upstream() as bad, running_upstream() as elsewhere:
        bad.script = refuse(302, location=elsewhere.url)
        async with backend_of(state, endpoint(bad.url)) as backend:
            await read(backend.start(ask()))
        assert set(bad.keys) == {"Bearer sk-up"}
        assert not elsewhere.received
    assert json.dumps("sk-up") not in repr(backend.config)
