"""`[[vllm]]` tables: models that vLLM serves on a Ray cluster with GPUs; values and their checks.

Read by the gateway, for the endpoints, and by `cloud.vllm_config`, for Ray Serve's
configuration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from shoal.hosted import NAME, PATH_PREFIX
from shoal.settings_table import A_DAY_S, SettingError, Table, tables

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
# Least and most.
_WHOLE = {
    "num_parameters": (1, 10**15), "context_tokens": (256, 2**31 - 1), "gpus": (1, 4_096),
    "min_replicas": (0, 10_000), "max_replicas": (1, 10_000), "requests_per_replica": (1, 100_000),
}  # fmt: skip
_NUMBERS = {
    "bytes_per_parameter": (0.1, 16.0), "idle_s": (1.0, A_DAY_S), "cold_start_s": (1.0, A_DAY_S),
}  # fmt: skip


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
    """The models of the tables. Raises SettingError, which names the setting and the remedy."""
    models = tuple(_model(row) for row in tables(rows, "vllm"))
    if len({model.name for model in models}) < len(models):
        raise SettingError("vllm: two tables have the same 'name'; give each its own.")
    return models


def _model(row: object) -> VllmModel:
    table = Table(row, "vllm", {*_TEXTS, *_WHOLE, *_NUMBERS, "own"})
    name = table.text("name")
    if not NAME.fullmatch(name):
        raise table.fails("name", f"of letters, digits, '.', '_' and '-', which {name!r} is not")
    table.where = f"vllm {name}"
    if "num_parameters" not in table:
        raise SettingError(f"{table.where}: 'num_parameters' is needed.")
    whole: dict[str, Any] = {
        each: table.whole(each, None, *_WHOLE[each]) for each in _WHOLE if each in table
    }
    numbers: dict[str, Any] = {
        each: table.number(each, 0.0, *_NUMBERS[each]) for each in _NUMBERS if each in table
    }
    accelerator = table.text("accelerator")
    if accelerator not in MEMORY_GIB and "gpus" not in table:
        raise SettingError(
            f"{table.where}: the memory of '{accelerator}' is not known here; say how many "
            f"'gpus' a replica needs, or name one of {', '.join(MEMORY_GIB)}."
        )
    model = VllmModel(
        name=name,
        source=table.text("source"),
        accelerator=accelerator,
        url=table.url("url"),
        own=table.flag("own"),
        **whole,
        **numbers,
    )
    if model.min_replicas > model.max_replicas:
        raise SettingError(f"{table.where}: 'min_replicas' is above 'max_replicas'.")
    return model
