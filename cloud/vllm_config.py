"""`python -m cloud.vllm_config --config FILE --key-file FILE`: Ray Serve's configuration for vLLM.

Prints what `serve deploy` takes on a cluster with GPUs, with an application for each
`[[vllm]]` table of the cloud configuration. JSON, which is YAML too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cloud.keys import key_hash
from shoal.vllm_models import VllmModel, vllm_models

_BUILDER = "ray.serve.llm:build_openai_app"
_INGRESS = "cloud.vllm_ingress:KeyedIngress"
# Requests that may be on their way to one replica, running or waiting in vLLM.
_QUEUE_FACTOR = 4
_UNUSABLE = 2


def serve_config(models: Sequence[VllmModel], key_sha256: str) -> dict[str, Any]:
    """A `ServeDeploySchema`. On every node's loopback and nowhere else unless changed: TLS and
    who may connect are the business of what is put in front."""
    return {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1", "port": 8000},
        "applications": [
            {
                "name": f"vllm-{model.name}",
                "route_prefix": model.path,
                "import_path": _BUILDER,
                "args": {
                    "llm_configs": [llm_config(model)],
                    "ingress_cls_config": {
                        "ingress_cls": _INGRESS,
                        "ingress_extra_kwargs": {"key_sha256": key_sha256},
                    },
                },
            }
            for model in models
        ],
    }


def llm_config(model: VllmModel) -> dict[str, Any]:
    """A `ray.serve.llm.LLMConfig`: one replica is as many GPUs of one kind as hold the model."""
    return {
        "model_loading_config": {"model_id": model.name, "model_source": model.source},
        "accelerator_type": model.accelerator,
        "engine_kwargs": {
            "tensor_parallel_size": model.num_gpus,
            "max_model_len": model.context_tokens,
            "enable_prefix_caching": True,
        },
        "deployment_config": {
            "max_ongoing_requests": _QUEUE_FACTOR * model.requests_per_replica,
            "autoscaling_config": {
                "min_replicas": model.min_replicas,
                "max_replicas": model.max_replicas,
                "target_ongoing_requests": model.requests_per_replica,
                "downscale_delay_s": model.idle_s,
            },
        },
    }


def main(arguments: Sequence[str]) -> int:
    """Print the configuration; exit code 2 and the reason when there is none to make."""
    parser = argparse.ArgumentParser(prog="cloud.vllm_config", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the cloud configuration, TOML")
    parser.add_argument("--key-file", type=Path, required=True, help="keys/hosted.key of the fleet")
    options = parser.parse_args(arguments)
    try:
        rows = tomllib.loads(options.config.read_text("utf-8")).get("vllm", [])
        models = vllm_models(rows)
        key_sha256 = key_hash(options.key_file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return _UNUSABLE
    if not models:
        sys.stderr.write(f"{options.config} has no [[vllm]] table\n")
        return _UNUSABLE
    print(json.dumps(serve_config(models, key_sha256), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
