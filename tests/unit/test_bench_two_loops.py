"""The bench's clients: what is lost is asked again, and other routers run in front of servers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import psutil
from aiohttp import web

from bench import two_loops
from bench.load import Sample, Target
from bench.other_routers import Servers, in_front
from bench.two_loops import Loop, Way, Window, burst, closed_loop


async def serving(handler):
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    app.router.add_get("/health", _plain)
    app.router.add_get("/v1/models", _plain)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def _plain(_request=None):
    return web.json_response({"data": []})


async def answered(request, *, whole=True):
    response = web.StreamResponse()
    await response.prepare(request)
    chunks = [{"choices": [{"delta": {"content": "a"}}]}]
    if whole:
        chunks.append({"choices": [], "usage": {"completion_tokens": 2, "prompt_tokens": 3}})
    for chunk in chunks:
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    return response


async def test_a_burst_asks_again_for_what_broke_off():
    asked = Counter()

    async def handler(request):
        prompt = (await request.json())["messages"][0]["content"]
        asked[prompt] += 1
        return await answered(request, whole=asked[prompt] > 1)

    runner, url = await serving(handler)
    try:
        figures = await burst(Way(Target(url, "m")), asyncio.Event())
    finally:
        await runner.cleanup()
    assert figures["asked_again"] == {"broken_off": two_loops.BURST}
    assert set(asked.values()) == {2}
    assert "unfinished" not in figures


async def test_a_burst_that_nobody_answers_ends_and_says_so(monkeypatch):
    monkeypatch.setattr(two_loops, "BURST_LIMIT_S", 0.3)

    released = asyncio.Event()

    async def handler(request):
        await released.wait()
        return await _plain()

    runner, url = await serving(handler)
    try:
        figures = await burst(Way(Target(url, "m")), asyncio.Event())
    finally:
        released.set()
        await runner.cleanup()
    assert figures["unfinished"] == two_loops.BURST
    assert figures["all_finished_s"] == 0.3


def test_only_what_came_within_the_window_counts():
    window = Window(10.0, 20.0)
    # From 9 to 11 s, four tokens: half of them inside.
    window.add(8.5, Sample(500.0, 2_500.0, 4, 1, 0))
    assert (window.tokens, window.ttfts_ms) == (2.0, [])


async def test_haproxy_gives_both_servers_work():
    served = Counter()

    def handler_of(name):
        async def handler(request):
            served[name] += 1
            await asyncio.sleep(0.01)
            return await answered(request)

        return handler

    runners, targets = [], {}
    for name in ("one", "two"):
        runner, url = await serving(handler_of(name))
        runners.append(runner)
        targets[name] = Target(url, "m")
    servers = Servers(targets, {name: psutil.Process() for name in targets})
    router = in_front("haproxy", servers)
    target = await asyncio.to_thread(router.__enter__)
    try:
        figures = await closed_loop(lambda _, __: Way(target), Loop(0.0, 1.0, 2))
    finally:
        await asyncio.to_thread(router.__exit__, None, None, None)
        for runner in runners:
            await runner.cleanup()
    assert set(served) == {"one", "two"}
    assert sum(served.values()) >= figures["requests"]
