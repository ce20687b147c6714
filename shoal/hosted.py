"""A model that the fleet itself serves on cloud nodes: what gateway and nodes agree on.

The gateway reads it from its configuration and sends requests; `cloud.deploy` makes a
Ray Serve deployment of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from shoal.gguf_facts import GgufFacts
from shoal.kv_budget import HOST_SHARE_OF_AVAILABLE, MAX_HOST_BYTES, resident_bytes

# Header of a request to a hosted model: hex salt of the tenant's block hashes, so that
# tenants share no cached blocks.
SALT_HEADER = "x-shoal-tenant-salt"
# Below this path of a Ray Serve application's port.
PATH_PREFIX = "/hosted"
# Default context, if the model was trained for that much: what a slot reserves is lost to others.
DEFAULT_CONTEXT_TOKENS = 4096
DEFAULT_SLOTS = 8
# Part of a path, and of an endpoint's name.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_KV_TYPE = "f16"


@dataclass(frozen=True, slots=True)
class HostedModel:
    """One model, and how much of the cluster it may have.

    `context_tokens`: of each of `slots` sequences. `memory_bytes`: of one replica, by the
    calculation of `shoal models fit`, `cache_bytes` of it for blocks of finished sequences.
    """

    name: str
    file: str
    num_parameters: int
    context_tokens: int
    memory_bytes: int
    cache_bytes: int
    slots: int = DEFAULT_SLOTS
    # Ray's logical CPUs of a replica, and its compute threads; 0: reserve none, use all.
    cpus: int = 0
    min_replicas: int = 0
    max_replicas: int = 1
    # Without a request for so long the last replica above `min_replicas` goes.
    idle_s: float = 300.0
    # From a request that finds no replica to a loaded model; then it fails.
    cold_start_s: float = 120.0
    # Where the Serve of another cluster is reached, without a path; empty: the fleet's own.
    url: str = ""
    # The owner says that these nodes are the fleet's edge: local requests may go there.
    own: bool = False

    @property
    def path(self) -> str:
        """Where the application serves its OpenAI-compatible API, without `/v1`."""
        return f"{PATH_PREFIX}/{self.name}"


def size(facts: GgufFacts, slots: int, context_tokens: int) -> tuple[int, int]:
    """(memory of a replica, its cache's part of it) in bytes.

    The cache of finished blocks gets as much as a device's of the same memory would.
    """
    shape = facts.kv_shape(_KV_TYPE)
    least = resident_bytes(shape, facts.file_bytes, slots * context_tokens, 0)
    cache_bytes = min(MAX_HOST_BYTES, int(least * HOST_SHARE_OF_AVAILABLE))
    return least + cache_bytes, cache_bytes


def to_json(models: Sequence[HostedModel]) -> str:
    """For the standard input of `cloud.deploy`."""
    return json.dumps([asdict(model) for model in models])


def from_json(text: str) -> tuple[HostedModel, ...]:
    """Inverse of `to_json`."""
    return tuple(HostedModel(**row) for row in json.loads(text))
