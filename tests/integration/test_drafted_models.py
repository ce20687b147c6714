"""Drafted models through a real gateway: budgets, pins; a scripted edge, a real endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from orchestrator.dispatch.cascade.policy import CascadePolicy
from orchestrator.dispatch.endpoint import CloudConfig, CloudEndpoint, CloudModel, RetryLimits
from orchestrator.dispatch.prices import Price
from orchestrator.dispatch.speculative_models import DraftedModel
from shoal.v1 import inference_pb2 as pb
from tests.harness.cloud_upstream import Upstream, running_upstream
from tests.harness.gateway_rig import MODEL, GatewayRig, fail, finished, placed, running_gateway
from tests.harness.redis_server import running_redis

BODY: dict[str, Any] = {
    "model": "big",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 8,
}
CASCADE = {"model": "first-small"}


@pytest.fixture(scope="module")
def state_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with running_upstream() as running:
        yield running


async def drafts(request: pb.GenerateRequest) -> AsyncIterator[pb.SequenceUpdate]:
    """A device that drafts three of five tokens; without a verifier it says all itself."""
    yield pb.SequenceUpdate(placed=placed())
    yield pb.SequenceUpdate(admitted=pb.Admitted(prompt_tokens=11))
    end = finished(5)
    if request.HasField("speculation"):
        end.speculated.mode = "speculative"
        end.speculated.target = request.speculation.target
        end.speculated.tokens_by_tier.update({"edge": 3, "cloud": 2})
    yield pb.SequenceUpdate(delta=pb.Delta(text="drafted", tokens=[1] * 5), finished=end)


@asynccontextmanager
async def gateway(
    folder: Path,
    state_url: str,
    *,
    price: Price | None = None,
    upstream: Upstream | None = None,
    draft: str = MODEL,
) -> AsyncIterator[tuple[GatewayRig, httpx.AsyncClient]]:
    """With an upstream it serves the drafted model, too, and dearly."""
    dear = CloudModel("big", "big", 70 * 10**9, price=Price(Decimal(1), Decimal(10**5)))
    cloud = CloudConfig(
        (CloudEndpoint("above", upstream.url, (dear,)),) if upstream else (),
        retry=RetryLimits(max_tries=1, max_wait_s=0.01),
        cascades=(
            CascadePolicy("first-small", MODEL, ("bgi", "big"), audit_share=1.0),
            CascadePolicy("wrong-edge", "big", (MODEL,)),
        ),
        drafted=(DraftedModel("big", draft, "10.0.0.5:8600", "cloud", price=price),),
    )
    async with running_gateway(folder, state_url, cloud=cloud) as rig:
        rig.hub.script = drafts
        headers = {"authorization": f"Bearer {rig.key}"}
        async with httpx.AsyncClient(base_url=rig.url, headers=headers, trust_env=False) as http:
            yield rig, http


async def budget(rig: GatewayRig, http: httpx.AsyncClient, **limits: float) -> dict[str, Any]:
    """Set acme's policy; what is told of it."""
    admin = {"authorization": f"Bearer {rig.admin_key}"}
    path = "/shoal/v1/tenants/acme"
    if limits:
        put = await http.put(path, json={"privacy": "any", **limits}, headers=admin)
        assert put.status_code == 200, put.text
    return dict((await http.get(path, headers=admin)).json())


async def record_of(rig: GatewayRig, http: httpx.AsyncClient, request_id: str) -> dict[str, Any]:
    admin = {"authorization": f"Bearer {rig.admin_key}"}
    async with asyncio.timeout(30):
        while True:
            reply = await http.get(f"/shoal/v1/decisions/{request_id}", headers=admin)
            if reply.status_code == 200:
                return dict(reply.json())
            await asyncio.sleep(0.05)


async def test_budget_covers_what_a_node_gives(tmp_path: Path, state_url: str) -> None:
    price = Price(Decimal(1), Decimal(2))
    async with gateway(tmp_path, state_url, price=price) as (rig, http):
        before = (await budget(rig, http, tokens_per_day=10**6))["spent"]
        served = await http.post("/v1/chat/completions", json=BODY)
        assert served.status_code == 200, served.text
        told = served.json()["shoal"]
        assert told["tokens_by_tier"] == {
            "cloud": {"prompt": 11, "completion": 2},
            "edge": {"prompt": 11, "completion": 3},
        }
        assert told["money_by_tier"] == {"cloud": {"amount": 15e-6, "currency": "USD"}}
        record = await record_of(rig, http, served.json()["id"])
        assert (record["model"], record["mode"], record["tier"]) == ("big", "speculative", "edge")
        assert record["money_by_tier"] == told["money_by_tier"]
        spent = (await budget(rig, http))["spent"]
        assert spent["tokens_per_day"] - before["tokens_per_day"] == 13
        await budget(rig, http, tokens_per_day=spent["tokens_per_day"] + 5)
        refused = await http.post("/v1/chat/completions", json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (402, "budget_exceeded")
        assert len(rig.hub.requests) == 1


async def test_node_without_a_price_is_closed_to_budgets_of_money(
    tmp_path: Path, state_url: str
) -> None:
    async with gateway(tmp_path, state_url) as (rig, http):
        await budget(rig, http, money_per_day=10**6)
        refused = await http.post("/v1/chat/completions", json=BODY)
        assert refused.status_code == 402
        assert "states no price" in refused.json()["error"]["message"]
        assert rig.hub.requests == []


async def test_lost_node_and_used_up_budget_end_as_402(
    tmp_path: Path, state_url: str, upstream: Upstream
) -> None:
    price = Price(Decimal(1), Decimal(1))
    async with gateway(tmp_path, state_url, price=price, upstream=upstream) as (rig, http):
        rig.hub.script = lambda request: fail(pb.FAILURE_REASON_UPSTREAM)
        money = (await budget(rig, http))["spent"].get("money_per_day", 0)
        await budget(rig, http, money_per_day=money + 0.01)
        refused = await http.post("/v1/chat/completions", json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (402, "budget_exceeded")
        assert len(rig.hub.requests) == 1
        assert upstream.bodies == []


@pytest.mark.parametrize("pin", [{"device": "bench-arm"}, {"class": "arm_cpu"}])
async def test_pinned_request_is_drafted_there_or_not_at_all(
    tmp_path: Path, state_url: str, upstream: Upstream, pin: dict[str, str]
) -> None:
    async with gateway(tmp_path, state_url, upstream=upstream) as (rig, http):
        await budget(rig, http, tokens_per_day=10**9)
        rig.hub.script = lambda request: fail(pb.FAILURE_REASON_UPSTREAM)
        lost = await http.post("/v1/chat/completions", json=BODY | {"shoal": pin})
        assert lost.status_code == 502
        hints = rig.hub.requests[0].hints
        assert (hints.device or hints.device_class) in pin.values()
        assert upstream.bodies == []
        # Without the pin the endpoint would have answered.
        served = await http.post("/v1/chat/completions", json=BODY)
        assert served.json()["shoal"]["tier"] == "cloud"


async def unsure_and_drafts(request: pb.GenerateRequest) -> AsyncIterator[pb.SequenceUpdate]:
    """A device that doubts what it says itself."""
    async for update in drafts(request):
        if request.measure_confidence and update.HasField("delta"):
            update.delta.text = "doubtful"
            update.delta.confidence.logprob.extend([-3.0] * 5)
            update.delta.confidence.entropy.extend([3.0] * 5)
            update.delta.confidence.margin.extend([0.05] * 5)
        yield update


async def test_cascade_goes_on_to_a_drafted_model(tmp_path: Path, state_url: str) -> None:
    price = Price(Decimal(1), Decimal(2))
    with capture_logs() as logs:
        async with gateway(tmp_path, state_url, price=price) as (rig, http):
            rig.hub.script = unsure_and_drafts
            before = (await budget(rig, http, tokens_per_day=10**9))["spent"]["tokens_per_day"]
            answer = (await http.post("/v1/chat/completions", json=BODY | CASCADE)).json()
            spent = (await budget(rig, http))["spent"]["tokens_per_day"]
    assert answer["choices"][0]["message"]["content"] == "drafted"
    told = answer["shoal"]
    assert told["cascade"]["target_model"] == "big"
    assert [leg["model"] for leg in told["cascade"]["legs"]] == [MODEL, "big"]
    assert told["cascade"]["legs"][1]["money"] == 15e-6
    assert told["tokens_by_tier"] == {
        "edge": {"prompt": 22, "completion": 8},
        "cloud": {"prompt": 11, "completion": 2},
    }
    assert spent - before == 13
    named = [line["model"] for line in logs if line["event"] == "cascade_model_not_served"]
    assert sorted(named) == ["bgi", "big"]


async def test_confident_answer_is_not_audited_by_a_drafted_model(
    tmp_path: Path, state_url: str
) -> None:
    async with gateway(tmp_path, state_url) as (rig, http):
        await budget(rig, http, tokens_per_day=10**9)
        sure = CASCADE | {"shoal": {"cascade": {"threshold": 0.0}}}
        rig.hub.script = unsure_and_drafts
        answer = (await http.post("/v1/chat/completions", json=BODY | sure)).json()
        assert answer["shoal"]["cascade"]["reason"] == "confident"
        admin = {"authorization": f"Bearer {rig.admin_key}"}
        metrics = (await http.get("/metrics", headers=admin)).text
    assert 'shoal_cascade_audits_total{policy="first-small"' not in metrics


async def test_without_its_draft_the_endpoint_of_the_same_name_answers(
    tmp_path: Path, state_url: str, upstream: Upstream
) -> None:
    async with gateway(tmp_path, state_url, upstream=upstream, draft="absent") as (rig, http):
        await budget(rig, http, tokens_per_day=10**9)
        served = await http.post("/v1/chat/completions", json=BODY)
        assert (served.status_code, served.json()["shoal"]["tier"]) == (200, "cloud")
        assert served.json()["shoal"]["reason"].startswith("No device has 'absent'.")
        assert rig.hub.requests == []
