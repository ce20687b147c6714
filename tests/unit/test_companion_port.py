"""A companion server is started when the one before it has left its port."""

from __future__ import annotations

import asyncio
import socket

import pytest

from agent.companion import server
from agent.companion.server import until_port_is_free


def listener(host: str) -> socket.socket:
    return socket.create_server(
        (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET
    )


@pytest.mark.parametrize("listens_on", ["127.0.0.1", "0.0.0.0"])
async def test_an_earlier_server_is_waited_for(listens_on: str) -> None:
    earlier = listener(listens_on)
    url = f"http://127.0.0.1:{earlier.getsockname()[1]}/v1"
    waiting = asyncio.create_task(until_port_is_free(url))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    earlier.close()
    assert await waiting


async def test_a_port_that_stays_taken_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_FREE_WITHIN_S", 0.2)
    with listener("127.0.0.1") as other:
        assert not await until_port_is_free(f"http://localhost:{other.getsockname()[1]}/v1")


@pytest.mark.parametrize("url", ["http://127.0.0.1/v1", "http://192.0.2.1:8080/v1"])
async def test_what_cannot_be_seen_from_here_is_left_to_the_server(url: str) -> None:
    assert await until_port_is_free(url)
