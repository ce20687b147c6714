"""The cloud tier against a real HTTP endpoint that speaks OpenAI's API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from pathlib import Path

import httpx
import pytest

from orchestrator.dispatch.endpoint import (
    CloudConfig,
    CloudEndpoint,
    CloudModel,
    RetryLimits,
    Timeouts,
)
from orchestrator.dispatch.prices import Price
from orchestrator.fleet.decisions_redis import DecisionStore, StoredDecision
from orchestrator.fleet.registry_redis import connect
from orchestrator.fleet.view import DeviceClass, DeviceId
from orchestrator.routing.decision import Candidate, Decision
from orchestrator.routing.record import Attempt, DecisionRecord
from shoal.v1 import inference_pb2 as pb
from tests.harness.cloud_upstream import (
    Script,
    Upstream,
    refuse,
    running_upstream,
    stream,
    text_chunk,
)
from tests.harness.gateway_rig import MODEL, GatewayRig, fail, running_gateway, say
from tests.harness.ports import free_port
from tests.harness.redis_server import running_redis

BIG = "big-70b"
BODY = {"model": BIG, "messages": [{"role": "user", "content": "hi"}], "temperature": 0.5}


@pytest.fixture(scope="module")
def state_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with running_upstream() as running:
        yield running


@pytest.fixture
async def rig(
    tmp_path: Path, state_url: str, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[GatewayRig]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    models = (
        CloudModel(BIG, "vendor/big", 70 * 10**9, price=Price(Decimal(2), Decimal(8))),
        CloudModel(MODEL, MODEL, 135 * 10**6),
    )
    timeouts = Timeouts(first_byte_s=1, chunk_s=1)
    endpoint = CloudEndpoint("vendor", upstream.url, models, key="sk-up", timeouts=timeouts)
    dead = CloudEndpoint(
        "dead", f"http://127.0.0.1:{free_port()}/v1", (CloudModel("dead-8b", "d", 8 * 10**9),)
    )
    cloud = CloudConfig((endpoint, dead), retry=RetryLimits(max_tries=2, max_wait_s=0.5))
    async with running_gateway(tmp_path, state_url, cloud=cloud) as running:
        yield running


@pytest.fixture
async def http(rig: GatewayRig) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=rig.url, headers={"authorization": f"Bearer {rig.key}"}, trust_env=False
    ) as ready:
        yield ready


async def test_big_model_is_answered_by_the_cloud_with_a_record(
    rig: GatewayRig, http: httpx.AsyncClient, upstream: Upstream
) -> None:
    answer = await http.post("/v1/chat/completions", json=BODY)
    body = answer.json()
    assert body["choices"][0]["message"]["content"] == "From above"
    assert body["model"] == BIG
    assert body["usage"]["total_tokens"] == 11
    assert (answer.headers["x-shoal-tier"], answer.headers["x-shoal-device"]) == ("cloud", "vendor")
    assert upstream.bodies[0]["model"] == "vendor/big"
    assert upstream.bodies[0]["temperature"] == 0.5
    assert "max_tokens" not in upstream.bodies[0]
    assert upstream.keys == ["Bearer sk-up"]
    assert rig.hub.requests == []
    record = await http.get(
        f"/shoal/v1/decisions/{body['id']}", headers={"authorization": f"Bearer {rig.admin_key}"}
    )
    assert record.json()["tier"] == "cloud"
    assert record.json()["reason"].startswith("Only the cloud serves the model.")
    assert record.json()["outcome"] == "finished"
    assert record.json()["actual"]["prompt_tokens"] == 9
    assert record.json()["attempts"][0]["device_name"] == "vendor"
    told = body["shoal"]
    for explained in (record.json(), told):
        assert (explained["mode"], explained["privacy"]) == ("cloud", "any")
        assert explained["tokens_by_tier"] == {"cloud": {"prompt": 9, "completion": 2}}
        assert explained["money_by_tier"] == {"cloud": {"amount": 34e-6, "currency": "USD"}}
        assert explained["usage_flags"] == []


async def test_cloud_streams_as_the_edge_does(http: httpx.AsyncClient) -> None:
    body = BODY | {"stream": True, "stream_options": {"include_usage": True}}
    answer = await http.post("/v1/chat/completions", json=body)
    events = answer.text.strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    roles = [c["choices"][0]["delta"].get("role") for c in chunks if c["choices"]]
    assert roles == ["assistant", None, None, None]
    assert chunks[-1]["shoal"]["tier"] == "cloud"


async def test_local_only_never_leaves_the_edge(
    http: httpx.AsyncClient, upstream: Upstream
) -> None:
    answer = await http.post(
        "/v1/chat/completions", json=BODY | {"shoal": {"privacy": "local_only"}}
    )
    assert answer.status_code == 403
    assert answer.json()["error"]["param"] == "shoal.privacy"
    assert upstream.bodies == []


async def test_full_edge_offloads_to_the_cloud_unless_the_request_must_stay(
    rig: GatewayRig, http: httpx.AsyncClient, upstream: Upstream
) -> None:
    rig.hub.script = lambda request: fail(pb.FAILURE_REASON_OVERLOADED)
    offloaded = await http.post("/v1/chat/completions", json=BODY | {"model": MODEL})
    assert offloaded.headers["x-shoal-tier"] == "cloud"
    assert "The edge could not serve it: as scripted" in offloaded.headers["x-shoal-reason"]
    assert offloaded.json()["shoal"]["attempt"] == 2
    local = BODY | {"model": MODEL, "shoal": {"privacy": "local_only"}}
    refused = await http.post("/v1/chat/completions", json=local)
    assert refused.status_code == 429
    assert len(upstream.bodies) == 1
    # Only who has nowhere else to go waits in the hub.
    assert [request.hints.no_waiting for request in rig.hub.requests] == [True, False]


async def test_record_of_an_edge_answer_names_the_endpoints_that_failed_before_it(
    rig: GatewayRig, http: httpx.AsyncClient, upstream: Upstream, state_url: str
) -> None:
    # From 7B on the cloud is asked first, though a device has the model.
    rig.hub.summary.models[0].num_parameters = 8 * 10**9
    upstream.script = refuse(500)
    await rig.stop_hub()
    await rig.start_hub()
    state = connect(state_url)
    store = DecisionStore(state)
    device = DeviceId("d1")

    async def edge(request: pb.GenerateRequest) -> AsyncIterator[pb.SequenceUpdate]:
        # The real hub writes its own record under the same id, of what it knows.
        own = DecisionRecord(
            Decision(
                request.request_id, MODEL, "edge", (), (device,),
                (Candidate(device, "bench-arm", DeviceClass.ARM_CPU, None),), "it has room", None,
                decided_unix_ms=2**41,
            ),
            attempts=(Attempt(device, "bench-arm", 2**41),),
            outcome="finished",
        )  # fmt: skip
        await store.append([StoredDecision(request.request_id, device, MODEL, own.to_json())])
        async for update in say("From", " below"):
            yield update

    rig.hub.script = edge
    admin = {"authorization": f"Bearer {rig.admin_key}"}
    async with asyncio.timeout(30):
        while True:
            listed = (await http.get(f"/v1/models/{MODEL}")).json()["shoal"]
            if listed["num_parameters"] == 8 * 10**9 and listed["ready_devices"]:
                break
            await asyncio.sleep(0.05)
        answer = await http.post("/v1/chat/completions", json=BODY | {"model": MODEL})
        assert answer.headers["x-shoal-tier"] == "edge", answer.text
        path = f"/shoal/v1/decisions/{answer.json()['id']}"
        while len((record := (await http.get(path, headers=admin)).json())["attempts"]) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert [(each["device_name"], each["failed"]) for each in record["attempts"]] == [
        ("vendor", "server_error (500)"), ("bench-arm", ""),
    ]  # fmt: skip
    assert [each["device_name"] for each in record["candidates"]] == ["bench-arm"]
    assert record["mode"] == "edge"
    await state.aclose()


@pytest.mark.parametrize(
    ("script", "status", "text"),
    [
        (refuse(400), 400, "upstream says no"),
        (refuse(401), 502, "configured key"),
        (refuse(404), 502, "configured model"),
        (refuse(429, retry_after="7"), 429, "rate limited"),
        (refuse(500), 502, "upstream says no"),
        (refuse(307, location="http://elsewhere.example/"), 502, "redirects"),
        (stream(), 502, "broke off"),
        (stream("data: {nonsense\n\n"), 502, "malformed"),
        (stream('data: {"choices": [7]}\n\n'), 502, "malformed"),
        (stream('data: {"error": {"message": "overheated"}}\n\n'), 502, "overheated"),
        (stream(hangs=True), 502, "in time"),
    ],
)
async def test_endpoints_failures_are_told_apart(
    http: httpx.AsyncClient, upstream: Upstream, script: Script, status: int, text: str
) -> None:
    upstream.script = script
    answer = await http.post("/v1/chat/completions", json=BODY)
    assert answer.status_code == status, answer.text
    assert text in answer.json()["error"]["message"]
    if status == 429:
        assert answer.headers["retry-after"] == "7"


async def test_unreachable_endpoint_is_502(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/chat/completions", json=BODY | {"model": "dead-8b"})
    assert answer.status_code == 502
    assert "unreachable" in answer.json()["error"]["message"]


async def test_break_in_the_middle_is_an_error_event(
    http: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.script = stream(text_chunk("From"))
    answer = await http.post("/v1/chat/completions", json=BODY | {"stream": True})
    assert answer.status_code == 200
    last = answer.text.strip().split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "upstream_error"


async def test_client_that_goes_away_closes_the_upstream_connection(
    http: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.script = stream(text_chunk("From"), hangs=True)
    async with http.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True}) as answer:
        assert "role" in await anext(answer.aiter_lines())
    async with asyncio.timeout(0.9):
        await upstream.gone.wait()


async def test_both_tiers_are_listed(http: httpx.AsyncClient) -> None:
    models = {m["id"]: m["shoal"] for m in (await http.get("/v1/models")).json()["data"]}
    assert models[BIG]["tiers"] == ["cloud"]
    assert models[MODEL]["tiers"] == ["edge", "cloud"]
    assert models[MODEL]["ready_devices"] == 1


async def test_tenants_policy_is_set_by_an_admin_and_decides(
    rig: GatewayRig, http: httpx.AsyncClient, upstream: Upstream
) -> None:
    admin = {"authorization": f"Bearer {rig.admin_key}"}
    path = "/shoal/v1/tenants/acme"
    assert (await http.put(path, json={"privacy": "any"})).status_code == 403
    bad = await http.put(path, json={"privacy": "any", "tokens_per_week": 3}, headers=admin)
    assert bad.status_code == 400
    assert (await http.post("/v1/chat/completions", json=BODY)).status_code == 200
    upstream.received.clear()
    policy = {"privacy": "local_only", "money_per_day": 2.5}
    told = await http.put(path, json=policy, headers=admin)
    assert told.json()["budgets"]["money_per_day"] == 2.5
    refused = await http.post("/v1/chat/completions", json=BODY | {"shoal": {"privacy": "any"}})
    assert refused.status_code == 403
    assert "The tenant 'acme' has the policy 'local_only'" in refused.json()["error"]["message"]
    assert not upstream.received
    # An edge request of this tenant is told to every hop as local.
    await http.post("/v1/chat/completions", json=BODY | {"model": MODEL})
    assert rig.hub.requests[-1].hints.privacy == pb.PRIVACY_LOCAL_ONLY
    listed = (await http.get("/shoal/v1/tenants", headers=admin)).json()["tenants"]
    assert {each["tenant"]: each["privacy"] for each in listed}["acme"] == "local_only"
    key = await http.post("/shoal/v1/keys", json={"tenant": "new"}, headers=admin)
    assert key.json()["privacy"] is None
    assert (await http.get("/shoal/v1/tenants/new", headers=admin)).status_code == 404


async def test_spent_budget_is_refused_and_the_edges_own_failure_told(
    rig: GatewayRig, http: httpx.AsyncClient, upstream: Upstream
) -> None:
    admin = {"authorization": f"Bearer {rig.admin_key}"}
    policy = {"privacy": "any", "tokens_per_day": 5}
    await http.put("/shoal/v1/tenants/acme", json=policy, headers=admin)
    refused = await http.post("/v1/chat/completions", json=BODY)
    assert (refused.status_code, refused.json()["error"]["code"]) == (402, "budget_exceeded")
    assert "tokens_per_day" in refused.json()["error"]["message"]
    rig.hub.script = lambda request: fail(pb.FAILURE_REASON_OVERLOADED)
    full = await http.post("/v1/chat/completions", json=BODY | {"model": MODEL})
    # What the edge said is worth more to the client than what was never asked.
    assert full.status_code == 429
    assert "The cloud was not asked: The budget" in full.json()["error"]["message"]
    assert not upstream.received
