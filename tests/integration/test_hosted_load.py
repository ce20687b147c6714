"""A hosted model that does not load: a replica's own engine, process and API."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import httpx
import pytest

from cloud.engine import ColdStartError, HostedEngine
from cloud.text import LOAD_REST_S, HostedText, LoadState, hosted_application
from shoal.hosted_tables import hosted_models
from tests.harness.tiny_llama_model import write_tiny_llama_model

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


async def test_who_waits_for_a_model_that_does_not_load_is_told_why(tmp_path: Path) -> None:
    file = write_tiny_llama_model(tmp_path / "Tiny.gguf")
    (model,) = hosted_models([{"file": str(file)}], tmp_path)
    file.write_bytes(b"no model any more")
    engine, retired = HostedEngine(model, tmp_path), list[bool]()
    load = LoadState(retire=lambda: retired.append(True))
    # Long before `cold_start_s`.
    async with asyncio.timeout(model.cold_start_s / 2):
        with pytest.raises(ColdStartError) as caught:
            await engine.start()
    await engine.stop()
    load.failed(str(caught.value))
    key_sha256 = hashlib.sha256(b"key").hexdigest()
    app = hosted_application(HostedText(engine, model, key_sha256, load))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://replica"
    ) as client:
        assert (await client.post("/v1/chat/completions", json=BODY)).status_code == 401
        client.headers["authorization"] = "Bearer key"
        reply = await client.post("/v1/chat/completions", json=BODY)
        assert reply.status_code == 503
        assert "Tiny.gguf" in reply.json()["error"]["message"]
        assert str(tmp_path) not in reply.text
        assert int(reply.headers["retry-after"]) > 200
        assert not retired
        # Somebody who asks after the rest hears of it, too; then a new replica tries.
        load.failed_s -= LOAD_REST_S
        assert (await client.post("/v1/chat/completions", json=BODY)).status_code == 503
        assert retired
