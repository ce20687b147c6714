"""vLLM on GPU nodes: the table, the configuration for Ray Serve, the endpoint. No GPU is asked."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from cloud import vllm_config
from cloud.keys import bears_key
from orchestrator.dispatch.endpoint import Salt
from orchestrator.dispatch.hosted import vllm_endpoints
from shoal.vllm_models import vllm_models

ROW = {
    "name": "llama-70b",
    "source": "meta-llama/Llama-3.1-70B-Instruct",
    "num_parameters": 70_000_000_000,
    "accelerator": "H100",
    "url": "https://gpus.example.com",
}


@pytest.mark.parametrize(
    ("change", "gpus"),
    [
        ({}, 4),  # 130 GiB of BF16 over 54 GiB a GPU
        ({"accelerator": "H200"}, 2),
        ({"bytes_per_parameter": 0.5}, 1),
        ({"num_parameters": 8_000_000_000, "accelerator": "L4"}, 1),
        ({"num_parameters": 405_000_000_000}, 16),
        ({"gpus": 8}, 8),
    ],
)
def test_replica_has_as_many_gpus_as_hold_the_weights(change: dict[str, object], gpus: int) -> None:
    (model,) = vllm_models([ROW | change])
    assert model.num_gpus == gpus


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"accelerator": "M1"}, "'gpus'"),
        ({"name": "a/b"}, "'name'"),
        ({"source": ""}, "'source'"),
        ({"max_replica": 2}, "max_replicas"),
        ({"min_replicas": 3}, "'max_replicas'"),
        ({"context_tokens": 1}, "'context_tokens'"),
        ({"idle_s": True}, "'idle_s'"),
    ],
)
def test_wrong_table_is_refused_and_names_the_setting(
    change: dict[str, object], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        vllm_models([ROW | change])


def test_configuration_is_one_that_ray_serve_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        # Ray's own imports use what is deprecated.
        warnings.simplefilter("ignore")
        from ray.serve.schema import ServeDeploySchema
    config, key = tmp_path / "cloud.toml", tmp_path / "hosted.key"
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in ROW.items())
    config.write_text(f"[[vllm]]\n{lines}")
    key.write_text("secret")
    arguments = ["--config", str(config), "--key-file", str(key)]
    assert vllm_config.main(arguments) == 0
    text = capsys.readouterr().out
    assert "secret" not in text
    parsed = ServeDeploySchema.model_validate(json.loads(text))
    (application,) = parsed.applications
    assert application.route_prefix == "/hosted/llama-70b"
    (llm,) = application.args["llm_configs"]
    assert llm["engine_kwargs"]["tensor_parallel_size"] == 4
    assert llm["deployment_config"]["autoscaling_config"]["min_replicas"] == 0


def test_endpoint_isolates_tenants_and_waits_for_a_cold_start() -> None:
    models = vllm_models([ROW])
    (endpoint,) = vllm_endpoints(models, "secret")
    assert endpoint.url == "https://gpus.example.com/hosted/llama-70b/v1"
    assert endpoint.salt is Salt.CACHE_SALT
    assert endpoint.timeouts.first_byte_s > models[0].cold_start_s


def test_key_is_checked_by_its_hash() -> None:
    digest = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"  # of "secret"
    assert bears_key({"authorization": "Bearer secret"}, digest)
    for value in ("", "Bearer", "Bearer other", "Basic secret"):
        assert not bears_key({"authorization": value}, digest)
