"""Cascades through a real gateway: a scripted edge that tells its confidence, a real endpoint."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from orchestrator.dispatch.cascade.policy import CascadePolicy
from orchestrator.dispatch.endpoint import CloudConfig, CloudEndpoint, CloudModel, RetryLimits
from orchestrator.dispatch.prices import Price
from orchestrator.fleet.decisions_redis import DecisionStore, StoredDecision
from orchestrator.fleet.view import DeviceId
from orchestrator.routing.decision import Decision
from orchestrator.routing.record import Attempt, DecisionRecord
from shoal.v1 import inference_pb2 as pb
from tests.harness.cloud_upstream import (
    DONE,
    GOOD,
    Exchange,
    Script,
    Upstream,
    refuse,
    running_upstream,
    stream,
    text_chunk,
    usage_chunk,
)
from tests.harness.gateway_rig import GatewayRig, finished, hang, placed, running_gateway
from tests.harness.redis_server import running_redis

BODY: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
SURE, UNSURE = 0.99, 0.2


@pytest.fixture(scope="module")
def state_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


def edge_says(probability: float, *words: str, ends: bool = True):
    """A device that is as sure of each of its words."""

    async def script(request: pb.GenerateRequest) -> AsyncIterator[pb.SequenceUpdate]:
        yield pb.SequenceUpdate(placed=placed())
        yield pb.SequenceUpdate(admitted=pb.Admitted(prompt_tokens=11))
        for nth, word in enumerate(words):
            sure = pb.Confidence(
                logprob=[math.log(probability)],
                entropy=[-math.log(probability)],
                margin=[probability],
            )
            delta = pb.Delta(text=word, tokens=[1])
            if request.measure_confidence:
                delta.confidence.CopyFrom(sure)
            last = ends and nth == len(words) - 1
            end = {"finished": finished(len(words))} if last else {}
            yield pb.SequenceUpdate(delta=delta, **end)
        if not ends:
            await asyncio.Event().wait()

    return script


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with running_upstream() as running:
        yield running


@pytest.fixture
async def rig(tmp_path: Path, state_url: str, upstream: Upstream) -> AsyncIterator[GatewayRig]:
    from decimal import Decimal

    price = Price(Decimal(1), Decimal(2))
    model = CloudModel("big", "big", 70 * 10**9, price=price)
    cloud = CloudConfig(
        (CloudEndpoint("above", upstream.url, (model,)),),
        retry=RetryLimits(max_tries=1, max_wait_s=0.01),
        cascades=(CascadePolicy(audit_share=1.0, explore_share=0.0, hold_s=0.5),),
    )
    async with running_gateway(tmp_path, state_url, cloud=cloud) as running:
        yield running


@pytest.fixture
async def http(rig: GatewayRig) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {rig.key}"}
    async with httpx.AsyncClient(base_url=rig.url, headers=headers, trust_env=False) as ready:
        yield ready


async def ask(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    reply = await http.post("/v1/chat/completions", json=BODY | fields)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def record_of(http: httpx.AsyncClient, rig: GatewayRig, request_id: str) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {rig.admin_key}"}
    async with asyncio.timeout(10):
        while True:
            reply = await http.get(f"/shoal/v1/decisions/{request_id}", headers=headers)
            if reply.status_code == 200:
                return dict(reply.json())


async def keep_hub_part(state_url: str, request: pb.GenerateRequest) -> None:
    """What a hub would write of a leg."""
    decision = Decision(request.request_id, request.model, "edge", (), (), (), "", None, 1)
    attempt = Attempt(DeviceId("d1"), "bench-arm", 1)
    record = DecisionRecord(decision).with_attempt(attempt).ended("finished", 2)
    async with Redis.from_url(state_url, decode_responses=True) as client:
        part = StoredDecision(request.request_id, "d1", request.model, record.to_json())
        await DecisionStore(client).append([part])


async def metrics_with(http: httpx.AsyncClient, rig: GatewayRig, line: str) -> None:
    headers = {"authorization": f"Bearer {rig.admin_key}"}
    async with asyncio.timeout(10):
        while line not in (await http.get("/metrics", headers=headers)).text:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def cascade_of(reply: httpx.Response) -> dict[str, Any]:
    """What a stream told at its end."""
    chunks = [json.loads(line[6:]) for line in reply.text.split("\n\n") if "{" in line]
    return dict(chunks[-1]["shoal"]["cascade"])


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


async def test_sure_answer_stands_and_is_audited(
    http: httpx.AsyncClient, rig: GatewayRig, upstream: Upstream
) -> None:
    rig.hub.script = edge_says(SURE, "From", " above")
    answer = await ask(http)
    assert text_of(answer) == "From above"
    told = answer["shoal"]["cascade"]
    assert (answer["shoal"]["mode"], answer["shoal"]["tier"]) == ("cascade", "edge")
    assert (told["decision"], told["reason"], told["policy"]) == ("accepted", "confident", "auto")
    assert told["confidence"] > told["threshold"]
    assert answer["shoal"]["joules_by_tier"] == {"edge": 1.5}
    await metrics_with(http, rig, 'shoal_cascade_audits_total{policy="auto",result="agree"} 1.0')
    assert len(upstream.bodies) == 1
    assert rig.hub.requests[0].measure_confidence


@pytest.mark.parametrize("stream", [False, True])
async def test_unsure_answer_is_replaced_and_never_seen(
    http: httpx.AsyncClient, rig: GatewayRig, upstream: Upstream, stream: bool
) -> None:
    rig.hub.script = edge_says(UNSURE, "A", " guess")
    if stream:
        reply = await http.post("/v1/chat/completions", json=BODY | {"stream": True})
        assert "guess" not in reply.text
        assert reply.headers["x-shoal-tier"] == "cloud"
        chunks = [json.loads(line[6:]) for line in reply.text.split("\n\n") if "{" in line]
        shoal, request_id = chunks[-1]["shoal"], chunks[-1]["id"]
    else:
        answer = await ask(http)
        assert text_of(answer) == "From above"
        shoal, request_id = answer["shoal"], answer["id"]
    assert shoal["cascade"]["reason"] == "low_confidence"
    assert shoal["tokens_by_tier"]["edge"] == {"prompt": 11, "completion": 2}
    assert shoal["tokens_by_tier"]["cloud"] == {"prompt": 9, "completion": 2}
    assert shoal["money_by_tier"]["cloud"]["amount"] > 0
    edge, above = shoal["cascade"]["legs"]
    assert (edge["tier"], edge["device"], edge["completion_tokens"]) == ("edge", "bench-arm", 2)
    assert (above["tier"], above["device"], above["completion_tokens"]) == ("cloud", "above", 2)
    assert (edge["joules"], edge["money"]) == (1.5, None)
    assert above["money"] == shoal["money_by_tier"]["cloud"]["amount"]
    record = await record_of(http, rig, request_id)
    assert (record["mode"], record["tier"]) == ("cascade", "cloud")
    assert record["cascade"] == shoal["cascade"]
    assert record["attempts"][-1]["device_name"] == "above"
    assert "guess" not in json.dumps(record)


async def test_local_request_never_leaves_however_unsure(
    http: httpx.AsyncClient, rig: GatewayRig, upstream: Upstream
) -> None:
    rig.hub.script = edge_says(UNSURE, "A", " guess")
    for privacy in ("local_only", "local_preferred"):
        answer = await ask(http, shoal={"privacy": privacy})
        assert text_of(answer) == "A guess"
        assert answer["shoal"]["cascade"]["reason"] == "no_target"
    assert upstream.bodies == []


@pytest.mark.parametrize("pin", [{"device": "bench-arm"}, {"class": "arm_cpu"}])
async def test_pinned_request_is_answered_there_however_unsure(
    http: httpx.AsyncClient, rig: GatewayRig, upstream: Upstream, pin: dict[str, str]
) -> None:
    rig.hub.script = edge_says(UNSURE, "A", " guess")
    answer = await ask(http, shoal=pin)
    assert text_of(answer) == "A guess"
    assert answer["shoal"]["cascade"]["reason"] == "no_target"
    hints = rig.hub.requests[0].hints
    assert {"device": hints.device, "class": hints.device_class} == {
        "device": "", "class": "", **pin,
    }  # fmt: skip
    reply = await http.post("/v1/chat/completions", json=BODY | {"shoal": {"class": "gpu"}})
    assert reply.status_code == 404
    assert len(rig.hub.requests) == 1
    assert upstream.bodies == []


async def test_held_answer_is_given_when_nobody_else_answers(
    http: httpx.AsyncClient, rig: GatewayRig, upstream: Upstream
) -> None:
    rig.hub.script = edge_says(UNSURE, "A", " guess")
    upstream.script = refuse(500)
    answer = await ask(http)
    assert text_of(answer) == "A guess"
    assert answer["shoal"]["cascade"]["reason"] == "escalation_failed"
    record = await record_of(http, rig, answer["id"])
    assert [each["failed"] for each in record["attempts"]] == ["server_error (500)"]


async def test_record_names_who_served_and_not_who_was_given_up(
    http: httpx.AsyncClient, rig: GatewayRig, upstream: Upstream, state_url: str
) -> None:
    headers = {"authorization": f"Bearer {rig.admin_key}"}

    async def edge(request: pb.GenerateRequest) -> AsyncIterator[pb.SequenceUpdate]:
        if request.request_id.endswith(".edge"):
            await keep_hub_part(state_url, request)
        async for update in edge_says(UNSURE, "A", " guess")(request):
            yield update

    rig.hub.script = edge
    upstream.script = stream(text_chunk("", "stop"), usage_chunk(9, 0), DONE)
    answer = await ask(http)
    record = await record_of(http, rig, answer["id"])
    told = [(each["device_name"], each["failed"]) for each in record["attempts"]]
    assert told == [("bench-arm", ""), ("above", "no_answer")]
    listed = await http.get("/shoal/v1/decisions", params={"device": "d1"}, headers=headers)
    assert answer["id"] in [each["request_id"] for each in listed.json()["decisions"]]
    upstream.script = stream(*GOOD)
    answer = await ask(http)
    record = await record_of(http, rig, answer["id"])
    told = [(each["device_name"], each["failed"]) for each in record["attempts"]]
    assert told == [("bench-arm", "low_confidence"), ("above", "")]


@pytest.mark.parametrize(
    "script", [stream(*GOOD[:3], cut=True), stream(text_chunk("", "stop"), usage_chunk(9, 0), DONE)]
)
async def test_edge_answers_for_an_endpoint_that_breaks_off_or_says_nothing(
    http: httpx.AsyncClient, upstream: Upstream, rig: GatewayRig, script: Script
) -> None:
    rig.hub.script, upstream.script = edge_says(UNSURE, "A", " guess"), script
    answer = await ask(http)
    assert text_of(answer) == "A guess"
    assert answer["shoal"]["cascade"]["reason"] == "escalation_failed"
    assert answer["shoal"]["tier"] == "edge"


async def test_endpoint_that_rests_is_not_waited_for_while_the_edge_has_an_answer(
    tmp_path: Path, state_url: str, upstream: Upstream
) -> None:
    cloud = CloudConfig(
        (CloudEndpoint("above", upstream.url, (CloudModel("big", "big", 70 * 10**9),)),),
        retry=RetryLimits(max_tries=1000, first_pause_s=600, max_pause_s=600, max_wait_s=1200),
        cascades=(CascadePolicy(escalate_s=600.0),),
    )
    upstream.script = refuse(503)
    async with running_gateway(tmp_path, state_url, cloud=cloud) as rig:
        rig.hub.script = edge_says(UNSURE, "A", " guess")
        headers = {"authorization": f"Bearer {rig.key}"}
        async with httpx.AsyncClient(
            base_url=rig.url, headers=headers, trust_env=False, timeout=60
        ) as http:
            assert text_of(await ask(http)) == "A guess"


async def test_stream_is_held_no_longer_than_the_bound(
    http: httpx.AsyncClient, rig: GatewayRig
) -> None:
    rig.hub.script = edge_says(SURE, "A", " long", " story", ends=False)
    async with http.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True}) as reply:
        assert reply.headers["x-shoal-tier"] == "edge"
        async for line in reply.aiter_lines():
            if "story" in line:
                break


async def test_busy_edge_is_not_taken_for_a_sure_one(
    http: httpx.AsyncClient, rig: GatewayRig
) -> None:
    rig.hub.script = lambda request: hang()
    reply = await http.post("/v1/chat/completions", json=BODY | {"stream": True})
    told = cascade_of(reply)
    assert "above" in reply.text
    assert (told["decision"], told["reason"], told["confidence"]) == ("escalated", "slow", None)
    assert rig.hub.cancelled[-1].endswith(".edge")


async def test_busy_edge_is_waited_for_when_nobody_else_answers(
    http: httpx.AsyncClient, rig: GatewayRig, upstream: Upstream
) -> None:
    has_room = asyncio.Event()

    async def busy(request: pb.GenerateRequest) -> AsyncIterator[pb.SequenceUpdate]:
        await has_room.wait()
        async for update in edge_says(UNSURE, "At", " last")(request):
            yield update

    async def down(exchange: Exchange) -> bool:
        has_room.set()
        return await refuse(500)(exchange)

    rig.hub.script, upstream.script = busy, down
    reply = await http.post("/v1/chat/completions", json=BODY | {"stream": True})
    told = cascade_of(reply)
    assert " last" in reply.text
    assert (told["decision"], told["reason"]) == ("accepted", "escalation_failed")
    assert (len(rig.hub.requests), rig.hub.cancelled) == (1, [])


async def test_restarted_stream_says_so(http: httpx.AsyncClient, rig: GatewayRig) -> None:
    rig.hub.script = edge_says(UNSURE, "A", " wild", " guess")
    fields = {"stream": True, "shoal": {"cascade": {"delivery": "restart"}}}
    reply = await http.post("/v1/chat/completions", json=BODY | fields)
    chunks = [json.loads(line[6:]) for line in reply.text.split("\n\n") if "{" in line]
    restarts = [n for n, each in enumerate(chunks) if "restart" in each.get("shoal", {})]
    assert len(restarts) == 1
    event = chunks[restarts[0]]["shoal"]["restart"]
    assert event == {"index": 0, "reason": "low_confidence", "discarded_tokens": 3}
    after = "".join(
        each["choices"][0]["delta"].get("content") or "" for each in chunks[restarts[0] :]
    )
    assert after == "From above"
    # The headers went out with the edge's first word; the end tells who answered.
    assert (reply.headers["x-shoal-tier"], chunks[-1]["shoal"]["tier"]) == ("edge", "cloud")


async def test_calibrated_threshold_is_used_and_hopeless_answers_are_cut_short(
    http: httpx.AsyncClient, rig: GatewayRig, upstream: Upstream
) -> None:
    headers = {"authorization": f"Bearer {rig.admin_key}"}
    path = "/shoal/v1/tenants/acme/cascades"
    early = await http.post(f"{path}/calibrate", json={"share": 0.5}, headers=headers)
    assert early.status_code == 400
    before = (await http.get(path, headers=headers)).json()["cascades"][0]["whole_samples"]
    for nth in range(100):
        rig.hub.script = edge_says(0.3 + nth / 150, "One", " two")
        # Of those that may not go on no threshold would change anything: they do not count.
        await ask(http, shoal={"privacy": "local_only"})
        await ask(http, shoal={"cascade": {"threshold": nth % 2}})
    async with asyncio.timeout(10):
        known = 0
        while known < before + 100:
            reply = await http.get(path, headers=headers)
            known = reply.json()["cascades"][0]["whole_samples"]
    assert known == before + 100
    found = await http.post(f"{path}/calibrate", json={"share": 0.5}, headers=headers)
    assert found.status_code == 200, found.text
    assert abs(found.json()["reached_share"] - 0.5) < 0.1
    rig.hub.script = edge_says(0.01, *("word",) * 1, ends=False)
    await asyncio.sleep(0)
    answer = await ask(http, shoal={"cascade": {"threshold": 0.95}})
    told = answer["shoal"]["cascade"]
    assert (told["reason"], told["measured_tokens"]) == ("hopeless", 1)
    assert rig.hub.cancelled[-1].endswith(".edge")
