"""The cloud tier against a real HTTP endpoint that speaks OpenAI's API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from orchestrator.dispatch.config import CloudEndpoint, CloudModel
from shoal.v1 import inference_pb2 as pb
from tests.harness.gateway_rig import MODEL, GatewayRig, fail, running_gateway
from tests.harness.ports import free_port
from tests.harness.redis_server import running_redis

BIG = "big-70b"
BODY = {"model": BIG, "messages": [{"role": "user", "content": "hi"}], "temperature": 0.5}


def chunk(**parts: Any) -> str:
    return "data: " + json.dumps({"id": "u", "object": "chat.completion.chunk", **parts}) + "\n\n"


def text_chunk(text: str, finish: str | None = None) -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return chunk(choices=[choice])


GOOD = [
    ": keep-alive\n\n",
    chunk(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}]),
    text_chunk("From"),
    text_chunk(" above", "stop"),
    chunk(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}),
    "data: [DONE]\n\n",
]


class Upstream:
    """What the endpoint does next, and what it saw."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.parts: list[str] = GOOD
        self.hangs = False
        self.refusal: Response | None = None
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.gone = asyncio.Event()

    async def answer(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        self.keys.append(request.headers.get("authorization", ""))
        if self.refusal is not None:
            return self.refusal
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        try:
            for part in self.parts:
                yield part
            if self.hangs:
                await asyncio.Event().wait()
        finally:
            self.gone.set()


@asynccontextmanager
async def running_upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream(free_port())
    routes = [
        Route("/v1/chat/completions", upstream.answer, methods=["POST"]),
        Route("/v1/completions", upstream.answer, methods=["POST"]),
    ]
    config = uvicorn.Config(
        Starlette(routes=routes), host="127.0.0.1", port=upstream.port, log_config=None,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    try:
        yield upstream
    finally:
        server.should_exit = True
        await serving


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
    models = (CloudModel(BIG, "vendor/big", 70 * 10**9), CloudModel(MODEL, MODEL, 135 * 10**6))
    endpoint = CloudEndpoint(
        "vendor", f"http://127.0.0.1:{upstream.port}/v1", models, key="sk-up", read_timeout_s=1
    )
    dead = CloudEndpoint(
        "dead", f"http://127.0.0.1:{free_port()}/v1", (CloudModel("dead-8b", "d", 8 * 10**9),)
    )
    async with running_gateway(tmp_path, state_url, cloud=(endpoint, dead)) as running:
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


Change = Callable[[Upstream], Awaitable[None] | None]


def _refuse(status: int, **headers: str) -> Change:
    def change(upstream: Upstream) -> None:
        error = {"error": {"message": "upstream says no"}}
        upstream.refusal = JSONResponse(error, status, headers=headers)

    return change


def _send(*parts: str, hangs: bool = False) -> Change:
    def change(upstream: Upstream) -> None:
        upstream.parts, upstream.hangs = list(parts), hangs

    return change


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        (_refuse(400), 400, "upstream says no"),
        (_refuse(401), 502, "configured key"),
        (_refuse(429, **{"retry-after": "7"}), 429, "rate limited"),
        (_refuse(500), 502, "upstream says no"),
        (_refuse(307, location="http://elsewhere.example/"), 502, "failed (307)"),
        (_send(), 502, "broke off"),
        (_send("data: {nonsense\n\n"), 502, "malformed"),
        (_send('data: {"choices": [7]}\n\n'), 502, "malformed"),
        (_send('data: {"error": {"message": "overheated"}}\n\n'), 502, "overheated"),
        (_send(hangs=True), 502, "in time"),
    ],
)
async def test_endpoints_failures_are_told_apart(
    http: httpx.AsyncClient, upstream: Upstream, change: Change, status: int, text: str
) -> None:
    change(upstream)
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
    _send(text_chunk("From"))(upstream)
    answer = await http.post("/v1/chat/completions", json=BODY | {"stream": True})
    assert answer.status_code == 200
    last = answer.text.strip().split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "upstream_error"


async def test_client_that_goes_away_closes_the_upstream_connection(
    http: httpx.AsyncClient, upstream: Upstream
) -> None:
    _send(text_chunk("From"), hangs=True)(upstream)
    async with http.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True}) as answer:
        assert "role" in await anext(answer.aiter_lines())
    async with asyncio.timeout(0.9):
        await upstream.gone.wait()


async def test_both_tiers_are_listed(http: httpx.AsyncClient) -> None:
    models = {m["id"]: m["shoal"] for m in (await http.get("/v1/models")).json()["data"]}
    assert models[BIG]["tiers"] == ["cloud"]
    assert models[MODEL]["tiers"] == ["edge", "cloud"]
    assert models[MODEL]["ready_devices"] == 1
