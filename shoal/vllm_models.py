"""`[[vllm]]` tables: models that vLLM serves on a Ray cluster with GPUs; values and their checks.

Read by the gateway, for the endpoints, and by `cloud.vllm_config`, for Ray Serve's
configuration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from shoal.hosted import NAME, PATH_PREFIX

# GiB of one accelerator under Ray's name of it, by the makers' data sheets; of those that come
# in several sizes the smallest.
MEMORY_GIB = {
    "T4": 16, "A10G": 24, "L4": 24, "L40S": 48, "A100": 40, "H100": 80, "H200": 141, "B200": 180,
}  # fmt: skip
# vLLM's default share of a GPU; what it computes and caches with needs some of it.
_GPU_SHARE = 0.9
_WEIGHTS_SHARE = 0.75
_GIB = 2**30
_TEXTS = {"name", "source", "accelerator", "url"}
_WHOLE = {
    "num_parameters": 1, "context_tokens": 256, "gpus": 1, "min_replicas": 0, "max_replicas": 1,
    "requests_per_replica": 1,
}  # fmt: skip
_NUMBERS = {"bytes_per_parameter": 0.1, "idle_s": 1.0, "cold_start_s": 1.0}


@dataclass(frozen=True, slots=True)
class VllmModel:
    """One model; `source` is a Hugging Face id or a path on the nodes, `accelerator` Ray's name.

    `url`: where that cluster's Serve is reached by the gateway, without a path.
    `gpus`: of one replica, by tensor parallelism; 0: as many as hold the weights.
    """

    name: str
    source: str
    accelerator: str
    url: str
    num_parameters: int
    context_tokens: int = 8192
    # BF16; a quantised checkpoint has less.
    bytes_per_parameter: float = 2.0
    gpus: int = 0
    min_replicas: int = 0
    max_replicas: int = 1
    # vLLM batches as much as its cache holds; beyond this a further replica is worth more.
    requests_per_replica: int = 32
    idle_s: float = 600.0
    # Fetching and loading tens of GiB takes minutes.
    cold_start_s: float = 600.0
    # The owner says that these nodes are the fleet's edge: local requests may go there.
    own: bool = False

    @property
    def path(self) -> str:
        """Where the application serves its OpenAI-compatible API, without `/v1`."""
        return f"{PATH_PREFIX}/{self.name}"

    @property
    def num_gpus(self) -> int:
        """`gpus`, or the smallest power of two whose memory holds the weights and a cache."""
        if self.gpus:
            return self.gpus
        weights_gib = self.num_parameters * self.bytes_per_parameter / _GIB
        one_gib = MEMORY_GIB[self.accelerator] * _GPU_SHARE * _WEIGHTS_SHARE
        return 1 << max(0, math.ceil(math.log2(weights_gib / one_gib)))


def vllm_models(rows: object) -> tuple[VllmModel, ...]:
    """The models of the tables. Raises ValueError, which names the setting and the remedy."""
    if not isinstance(rows, list):
        raise ValueError("'vllm' must be a list of tables.")
    models = tuple(_model(row) for row in rows)
    if len({model.name for model in models}) < len(models):
        raise ValueError("vllm: two tables have the same 'name'; give each its own.")
    return models


def _model(row: Any) -> VllmModel:
    known = {*_TEXTS, *_WHOLE, *_NUMBERS, "own"}
    if not isinstance(row, dict) or not set(row) <= known:
        raise ValueError(f"vllm: a table of {', '.join(sorted(known))} is needed.")
    for field in sorted(_TEXTS):
        if not isinstance(row.get(field), str) or not row[field]:
            raise ValueError(f"vllm: '{field}' must be a string that is not empty.")
    name = row["name"]
    if not isinstance(row.get("own", False), bool):
        raise ValueError(f"vllm {name}: 'own' must be true or false.")
    if not NAME.fullmatch(name):
        raise ValueError(f"vllm: 'name' {name!r} must be of letters, digits, '.', '_' and '-'.")
    if "num_parameters" not in row:
        raise ValueError(f"vllm {name}: 'num_parameters' is needed.")
    for field, least in {**_WHOLE, **_NUMBERS}.items():
        value = row.get(field, least)
        kind = int if field in _WHOLE else int | float
        if isinstance(value, bool) or not isinstance(value, kind) or value < least:
            raise ValueError(f"vllm {name}: '{field}' must be a number of at least {least}.")
    if row["accelerator"] not in MEMORY_GIB and "gpus" not in row:
        raise ValueError(
            f"vllm {name}: the memory of '{row['accelerator']}' is not known here; say how many "
            f"'gpus' a replica needs, or name one of {', '.join(MEMORY_GIB)}."
        )
    model = VllmModel(**row)
    if model.min_replicas > model.max_replicas:
        raise ValueError(f"vllm {name}: 'min_replicas' is above 'max_replicas'.")
    return model
