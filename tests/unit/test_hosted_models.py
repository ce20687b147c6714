"""Hosted models: what a table asks for, what it takes of a node, where it is reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.dispatch.endpoint import Salt
from orchestrator.dispatch.hosted import hosted_endpoints
from shoal.gguf_facts import scan
from shoal.hosted import from_json, size, to_json
from shoal.hosted_tables import hosted_models
from shoal.kv_budget import MIB, MIN_RESERVE_BYTES, FitRequest, plan_kv
from tests.harness.tiny_llama_model import write_tiny_llama_model


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "Tiny.Q8_0.gguf"
    write_tiny_llama_model(path)
    return path


def test_table_with_a_file_alone_is_enough(file: Path) -> None:
    (model,) = hosted_models([{"file": file.name}], file.parent)
    assert model.name == "tiny"
    assert model.file == str(file)
    assert model.num_parameters == scan(file).num_parameters
    assert (model.min_replicas, model.max_replicas) == (0, 1)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({}, "'file'"),
        ({"file": "missing.gguf"}, "missing.gguf"),
        ({"file": "Tiny.Q8_0.gguf", "slot": 3}, "slots"),
        ({"file": "Tiny.Q8_0.gguf", "slots": 0}, "'slots'"),
        ({"file": "Tiny.Q8_0.gguf", "slots": True}, "'slots'"),
        ({"file": "Tiny.Q8_0.gguf", "name": "a/b"}, "'name'"),
        ({"file": "Tiny.Q8_0.gguf", "min_replicas": 2}, "'max_replicas'"),
        ({"file": "Tiny.Q8_0.gguf", "idle_s": 0}, "'idle_s'"),
    ],
)
def test_wrong_table_is_refused_and_names_the_setting(
    file: Path, row: dict[str, object], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        hosted_models([row], file.parent)


def test_two_models_need_two_names(file: Path) -> None:
    rows = [{"file": file.name}, {"file": file.name}]
    with pytest.raises(ValueError, match="name"):
        hosted_models(rows, file.parent)


def test_memory_of_a_replica_is_what_models_fit_calls_enough(file: Path) -> None:
    facts = scan(file)
    memory_bytes, cache_bytes = size(facts, slots=4, context_tokens=512)
    shape = facts.kv_shape("f16")
    free_bytes = memory_bytes - cache_bytes + MIN_RESERVE_BYTES
    enough = plan_kv(FitRequest(shape, facts.file_bytes, free_bytes, 4, 512))
    assert (enough.slots, enough.context_tokens) == (4, 512)
    too_little = plan_kv(FitRequest(shape, facts.file_bytes, free_bytes - MIB, 4, 512))
    assert (too_little.slots, too_little.context_tokens) != (4, 512)


def test_endpoint_waits_for_a_cold_start(file: Path) -> None:
    models = hosted_models([{"file": file.name, "cold_start_s": 90}], file.parent)
    (endpoint,) = hosted_endpoints(models, "http://127.0.0.1:1", "secret")
    assert endpoint.url == "http://127.0.0.1:1/hosted/tiny/v1"
    assert endpoint.timeouts.first_byte_s > 90
    assert endpoint.salt is Salt.HEADER
    assert "secret" not in repr(endpoint)


def test_model_of_another_cluster_is_reached_there(file: Path) -> None:
    rows = [{"file": file.name, "url": "https://serve.example.com/"}]
    models = hosted_models(rows, file.parent)
    (endpoint,) = hosted_endpoints(models, "http://127.0.0.1:1", "secret")
    assert endpoint.url == "https://serve.example.com/hosted/tiny/v1"


def test_models_survive_the_way_to_the_cluster(file: Path) -> None:
    models = hosted_models([{"file": file.name, "cpus": 2}], file.parent)
    assert from_json(to_json(models)) == models
