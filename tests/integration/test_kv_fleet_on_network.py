"""A fleet that listens beyond its machine shares KV blocks over TLS."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from shoal.cli import cache_server, redis_server
from shoal.home import Home
from shoal.ports import is_loopback
from tests.harness.fleet import Fleet, wait_for
from tests.harness.models import smollm2_file

TEXT = " ".join(f"The {number}th sheep jumps over the fence." for number in range(30))


def own_address() -> str:
    """An address of this machine that is not loopback; empty: it has none."""
    addresses = (each for found in psutil.net_if_addrs().values() for each in found)
    found = (a.address for a in addresses if a.family == socket.AF_INET)
    return next((address for address in found if not is_loopback(address)), "")


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    binary = redis_server.find_redis_binary()
    if not own_address() or binary is None or not cache_server.knows_tls(binary):
        pytest.skip("needs an address beside loopback, and a Redis with TLS")
    options = ("--host", own_address(), "--agents", "2", "--slots", "2", "--context", "1024")
    running = Fleet("--model", str(smollm2_file()), "--kv-share", "on_second_use", *options)
    yield running
    running.close()


def ask(fleet: Fleet, device: str) -> dict[str, Any]:
    message = {"role": "user", "content": TEXT}
    body = {"model": fleet.model, "messages": [message], "max_tokens": 2, "temperature": 0}
    # Its tenant's prompts may leave the device; a new tenant's may not.
    key = Home(fleet.home).default_key_file.read_text().strip()
    with fleet.http(key) as client:
        answer = client.post("/v1/chat/completions", json=body | {"shoal": {"device": device}})
    assert answer.status_code == 200, answer.text
    shoal = answer.json()["shoal"]
    assert shoal["device"] == device
    return dict(shoal)


def test_what_one_device_computed_comes_to_another_over_tls(fleet: Fleet) -> None:
    home = Home(fleet.home)
    port = cache_server.last_cache_port(home)
    assert port is not None
    assert not cache_server.cache_answers(port)
    assert cache_server.cache_answers(port, home.ca_dir / "ca.crt")
    for device in ("local-1", "local-2"):
        url = (home.agent_dir(device) / "kv-shared.json").read_text()
        assert f"rediss://{own_address()}:{port}" in url
    assert ask(fleet, "local-1")["kv_fetch"] is None
    # The fleet's policy: not before a second request used them.
    assert ask(fleet, "local-2")["cached_tokens_by_tier"] == {}
    assert "host" in ask(fleet, "local-1")["cached_tokens_by_tier"]

    def written() -> bool:
        (model,) = next(
            each["models"]
            for each in fleet.json("devices", "list")["devices"]
            if each["name"] == "local-1"
        )
        assert model["load"]["kv_sharing"]["policy"] == "on_second_use"
        return float(model["load"]["counters"].get("kv_shared_written", 0)) >= 2

    wait_for("the blocks are in Redis", written, timeout_s=90)
    (finding,) = (
        each
        for each in fleet.json("doctor", "--port", str(fleet.port))["findings"]
        if each["name"] == "shared KV blocks"
    )
    assert finding["verdict"] == "ok"
