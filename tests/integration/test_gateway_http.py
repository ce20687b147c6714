"""The gateway over real HTTP, mutual TLS to a scripted hub, real Redis, the official client."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from shoal.v1 import inference_pb2 as pb
from tests.harness.gateway_rig import MODEL, GatewayRig, fail, hang, running_gateway, say
from tests.harness.redis_server import running_redis

QUESTION = [{"role": "user", "content": "hi"}]
BODY = {"model": MODEL, "messages": QUESTION}


@pytest.fixture(scope="module")
def state_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture
async def rig(tmp_path: Path, state_url: str) -> AsyncIterator[GatewayRig]:
    async with running_gateway(tmp_path, state_url, max_in_flight=3) as running:
        yield running


@pytest.fixture
async def client(rig: GatewayRig) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{rig.url}/v1", api_key=rig.key, max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    ) as ready:  # fmt: skip
        yield ready


@pytest.fixture
async def http(rig: GatewayRig) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=rig.url, headers={"authorization": f"Bearer {rig.key}"}, trust_env=False
    ) as ready:
        yield ready


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_answer_in_one_piece_with_headers_usage_and_extension(
    rig: GatewayRig, client: openai.AsyncOpenAI
) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=QUESTION, extra_body={"shoal": {"slo": {"tpot_ms": 50}}}
    )
    answer = raw.parse()
    assert answer.choices[0].message.content == "Hello world"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    assert raw.headers["x-shoal-device"] == "bench-arm"
    assert raw.headers["x-shoal-tier"] == "edge"
    assert raw.headers["x-shoal-request-id"] == answer.id
    assert raw.headers["x-shoal-reason"].startswith("at most 1B")
    extension = answer.model_extra["shoal"]  # type: ignore[index]
    assert extension["predicted"]["ttft_ms"] == 120
    assert extension["actual"]["tpot_ms"] == 12
    assert extension["cached_tokens_by_tier"] == {"host": 4}
    sent = rig.hub.requests[0]
    assert sent.tenant == "acme"
    assert len(sent.tenant_salt) == 16
    assert sent.hints.tpot_ms == 50
    assert sent.deadline_unix_ms > 0


async def test_stream_has_one_role_one_finish_usage_and_done(http: httpx.AsyncClient) -> None:
    body = BODY | {"stream": True, "stream_options": {"include_usage": True}}
    answer = await http.post("/v1/chat/completions", json=body)
    events = answer.text.strip().split("\n\n")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert [c["delta"]["role"] for c in choices if "role" in c["delta"]] == ["assistant"]
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["stop"]
    assert "".join(c["delta"].get("content", "") for c in choices) == "Hello world"
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 13
    assert chunks[-1]["shoal"]["device"] == "bench-arm"


async def test_without_usage_the_finish_chunk_carries_the_extension(
    client: openai.AsyncOpenAI,
) -> None:
    stream = await client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
    chunks = [chunk async for chunk in stream]
    assert all(chunk.choices for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].model_extra["shoal"]["tier"] == "edge"  # type: ignore[index]


async def test_failure_before_the_first_token_has_its_status(
    http: httpx.AsyncClient, rig: GatewayRig
) -> None:
    rig.hub.script = lambda request: fail(pb.FAILURE_REASON_OVERLOADED)
    for stream in (False, True):
        answer = await http.post("/v1/chat/completions", json=BODY | {"stream": stream})
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "3"
        assert answer.json()["error"]["code"] == "overloaded"


async def test_failure_after_the_first_token_is_an_error_event_without_done(
    http: httpx.AsyncClient, rig: GatewayRig
) -> None:
    rig.hub.script = lambda request: fail(pb.FAILURE_REASON_DEVICE_LOST, after=("Hel", "lo"))
    answer = await http.post("/v1/chat/completions", json=BODY | {"stream": True})
    assert answer.status_code == 200
    events = answer.text.strip().split("\n\n")
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "device_lost"
    assert "[DONE]" not in answer.text


async def test_openai_client_raises_on_an_error_event(
    client: openai.AsyncOpenAI, rig: GatewayRig
) -> None:
    rig.hub.script = lambda request: fail(pb.FAILURE_REASON_DEVICE_LOST, after=("Hel",))
    stream = await client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
    with pytest.raises(openai.APIError, match="as scripted"):
        async for _ in stream:
            pass


@pytest.mark.parametrize("words", [(), ("some", " text")], ids=["before", "while"])
async def test_client_that_goes_away_cancels(
    http: httpx.AsyncClient, rig: GatewayRig, words: tuple[str, ...]
) -> None:
    rig.hub.script = lambda request: hang(*words)
    post = asyncio.create_task(http.post("/v1/chat/completions", json=BODY | {"stream": True}))
    await until(lambda: len(rig.hub.requests) == 1)
    post.cancel()
    await until(lambda: rig.hub.cancelled == [rig.hub.requests[0].request_id])
    status = await http.get(
        "/shoal/v1/status", headers={"authorization": f"Bearer {rig.admin_key}"}
    )
    assert status.json()["in_flight"] == 0


async def test_more_than_the_limit_is_refused_at_once(
    http: httpx.AsyncClient, rig: GatewayRig
) -> None:
    rig.hub.script = lambda request: hang()
    held = [asyncio.create_task(http.post("/v1/chat/completions", json=BODY)) for _ in range(3)]
    await until(lambda: len(rig.hub.requests) == 3)
    refused = await http.post("/v1/chat/completions", json=BODY)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    for task in held:
        task.cancel()


async def test_several_prompts_and_n_are_several_choices(
    client: openai.AsyncOpenAI, rig: GatewayRig
) -> None:
    rig.hub.script = lambda request: say(request.text, f"/{request.sampling.seed}")
    answer = await client.completions.create(
        model=MODEL, prompt=["a", "b"], n=2, seed=7, extra_body={"echo": True}
    )
    assert [choice.text for choice in answer.choices] == ["aa/7", "aa/8", "bb/7", "bb/8"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 22
    assert answer.usage.completion_tokens == 8


async def test_one_failed_choice_fails_all_and_cancels_the_rest(
    http: httpx.AsyncClient, rig: GatewayRig
) -> None:
    rig.hub.script = lambda request: (
        fail(pb.FAILURE_REASON_NO_DEVICE) if request.text == "b" else hang()
    )
    answer = await http.post("/v1/completions", json={"model": MODEL, "prompt": ["a", "b"]})
    assert answer.status_code == 503
    await until(lambda: rig.hub.cancelled == [rig.hub.requests[0].request_id])


async def test_token_prompts_pass_as_they_are(http: httpx.AsyncClient, rig: GatewayRig) -> None:
    answer = await http.post("/v1/completions", json={"model": MODEL, "prompt": [1, 2, 3]})
    assert answer.json()["choices"][0]["text"] == "Hello world"
    assert list(rig.hub.requests[0].tokens.ids) == [1, 2, 3]
    assert rig.hub.requests[0].max_tokens == 16


async def test_lost_hub_before_output_is_tried_again_after_it_fails(
    http: httpx.AsyncClient, rig: GatewayRig
) -> None:
    rig.hub.script = lambda request: hang()
    post = asyncio.create_task(http.post("/v1/chat/completions", json=BODY))
    await until(lambda: len(rig.hub.requests) == 1)
    await rig.stop_hub()
    rig.hub.script = lambda request: say("again")
    await rig.start_hub()
    answer = await post
    assert answer.json()["choices"][0]["message"]["content"] == "again"
    assert len(rig.hub.requests) == 2


async def test_lost_hub_after_output_ends_the_stream_with_an_error(
    http: httpx.AsyncClient, rig: GatewayRig
) -> None:
    rig.hub.script = lambda request: hang("Hel")
    async with http.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True}) as answer:
        lines = answer.aiter_lines()
        assert "role" in await anext(lines)
        await rig.stop_hub()
        rest = [line async for line in lines if line]
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "device_lost"
    ready = await http.get("/readyz")
    assert ready.status_code == 503


async def test_keys_guard_the_api_and_roles_guard_the_admin_part(
    http: httpx.AsyncClient, rig: GatewayRig
) -> None:
    for headers in ({}, {"authorization": "Bearer sk-shoal-wrong"}, {"authorization": "Basic x"}):
        async with httpx.AsyncClient(base_url=rig.url, trust_env=False) as anyone:
            for path in ("/v1/models", "/shoal/v1/devices"):
                assert (await anyone.get(path, headers=headers)).status_code == 401
            chat = await anyone.post("/v1/chat/completions", json=BODY, headers=headers)
            assert chat.status_code == 401
            assert chat.json()["error"]["code"] == "invalid_api_key"
            for path in ("/healthz", "/readyz", "/shoal/v1/join"):
                assert (await anyone.get(path, headers=headers)).status_code == 200
    assert (await http.get("/shoal/v1/devices")).status_code == 403


async def test_admin_makes_keys_and_tokens_and_sees_devices(rig: GatewayRig) -> None:
    headers = {"authorization": f"Bearer {rig.admin_key}"}
    async with httpx.AsyncClient(base_url=rig.url, headers=headers, trust_env=False) as admin:
        made = (await admin.post("/shoal/v1/keys", json={"tenant": "beta", "name": "ci"})).json()
        token = (await admin.post("/shoal/v1/tokens", json={"ttl_s": 60})).json()["token"]
        await admin.post("/shoal/v1/devices/bench-arm/labels", json={"set": {"site": "hall"}})
        reserved = await admin.post(
            "/shoal/v1/devices/bench-arm/labels", json={"set": {"calibrated/m": "f16"}}
        )
        devices = (await admin.get("/shoal/v1/devices")).json()["devices"]
        missing = await admin.get("/shoal/v1/decisions/none")
        bad_ttl = await admin.post("/shoal/v1/tokens", json={"ttl_s": "soon"})
        join = (await admin.get("/shoal/v1/join")).json()
        models = await admin.get("/v1/models", headers={"authorization": f"Bearer {made['key']}"})
        one = await admin.get(f"/v1/models/{MODEL}")
    assert token.endswith(rig.authority.ca_sha256)
    assert join["ca_pem"] == rig.authority.ca_pem
    assert join["hub_addresses"] == [f"192.0.2.7:{rig.hub_port}"]
    assert devices[0]["labels"] == {"site": "hall"}
    assert reserved.status_code == 400
    assert "the agent's own" in reserved.json()["error"]["message"]
    assert [(d["name"], d["state"], d["class"]) for d in devices] == [
        ("bench-arm", "READY", "arm_cpu")
    ]
    assert devices[0]["models"][0]["state"] == "READY"
    assert missing.status_code == 404
    assert bad_ttl.json()["error"]["param"] == "ttl_s"
    assert models.json()["data"][0]["id"] == MODEL
    assert one.json()["shoal"]["ready_devices"] == 1


async def test_revoked_key_is_refused_at_once_and_nobody_locks_themselves_out(
    rig: GatewayRig,
) -> None:
    headers = {"authorization": f"Bearer {rig.admin_key}"}
    async with httpx.AsyncClient(base_url=rig.url, headers=headers, trust_env=False) as admin:
        made = (await admin.post("/shoal/v1/keys", json={"tenant": "beta", "name": "old"})).json()
        its = {"authorization": f"Bearer {made['key']}"}
        assert (await admin.get("/v1/models", headers=its)).status_code == 200
        listed = (await admin.get("/shoal/v1/keys")).json()["keys"]
        assert made["key"] not in str(listed)
        key_id = next(each["id"] for each in listed if each["name"] == "old")
        own_id = hashlib.sha256(rig.admin_key.encode()).hexdigest()[:12]
        own = await admin.post(f"/shoal/v1/keys/{own_id}/revoke")
        unknown = await admin.post("/shoal/v1/keys/0123456789ab/revoke")
        revoked = await admin.post(f"/shoal/v1/keys/{key_id}/revoke")
        refused = await admin.get("/v1/models", headers=its)
        assert (await admin.get("/v1/models")).status_code == 200
    assert (own.status_code, own.json()["error"]["param"]) == (400, "key")
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "key")
    assert revoked.json()["revoked_unix_ms"] > revoked.json()["created_unix_ms"] - 1
    assert refused.status_code == 401


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 50_000, b'{"a": NaN}', b"1" * 5000,
     b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
     b'{"model": "\\ud800", "messages": []}'],
)  # fmt: skip
async def test_broken_bodies_are_refused(http: httpx.AsyncClient, body: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        answer = await http.post(path, content=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["message"]


async def test_body_over_the_limit_is_413(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/chat/completions", content=b" " * (9 * 2**20))
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_unknown_paths_and_methods_have_openais_error_shape(http: httpx.AsyncClient) -> None:
    missing = await http.get("/v1/nothing")
    wrong = await http.get("/v1/chat/completions")
    slashed = await http.post("/v1/chat/completions/", json=BODY)
    assert (slashed.status_code, slashed.json()["error"]["code"]) == (404, "not_found")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"
    assert "POST" in wrong.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "remedy"),
    [("/chat/completions", "base_url ends in /v1"), ("/v1/chat/completions/", "slash at the end")],
)
async def test_path_that_is_almost_right_gets_the_remedy(
    http: httpx.AsyncClient, path: str, remedy: str
) -> None:
    answer = await http.post(path, json=BODY)
    assert answer.status_code == 404
    assert remedy in answer.json()["error"]["message"]


async def test_metrics_need_an_admin_key_and_tell_of_requests_and_devices(
    http: httpx.AsyncClient, rig: GatewayRig
) -> None:
    assert (await http.get("/metrics")).status_code == 403
    assert (await http.post("/v1/chat/completions", json=BODY)).status_code == 200
    headers = {"authorization": f"Bearer {rig.admin_key}"}
    answer = await http.get("/metrics", headers=headers)
    assert answer.headers["content-type"].startswith("text/plain")
    text = answer.text
    assert f'shoal_requests_total{{model="{MODEL}",outcome="finished",tier="edge"}}' in text
    assert 'shoal_devices{class="arm_cpu",state="READY"} 1.0' in text


async def test_tenants_own_limit_is_429_with_a_time_to_retry(
    rig: GatewayRig, http: httpx.AsyncClient
) -> None:
    admin = {"authorization": f"Bearer {rig.admin_key}"}
    policy = {"privacy": "any", "requests_per_minute": 1, "weight": 3}
    policy |= {"objective": "edp", "hedge_after": 2}
    stored = await http.put("/shoal/v1/tenants/acme", json=policy, headers=admin)
    assert stored.json()["rates"] == {
        "requests_per_minute": 1, "tokens_per_minute": None, "weight": 3,
    }  # fmt: skip
    assert stored.json()["defaults"] == {"objective": "edp", "hedge_after": 2}
    assert (await http.post("/v1/chat/completions", json=BODY)).status_code == 200
    sent = rig.hub.requests[0]
    assert (sent.tenant_weight, sent.hints.hedge_after) == (3, 2)
    assert sent.hints.objective == pb.OBJECTIVE_EDP
    refused = await http.post("/v1/chat/completions", json=BODY)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert 50 < int(refused.headers["retry-after"]) <= 60
    await http.put("/shoal/v1/tenants/acme", json={"privacy": "any"}, headers=admin)
