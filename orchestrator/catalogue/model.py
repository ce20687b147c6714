"""Values: a variant (one file), a deployment (what is wanted), a placement (what is done)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from orchestrator.fleet.view import DeviceId
from shoal.kv_budget import KvShape

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Variant:
    """One model file; `path` is on the orchestrator's machine."""

    sha256: str
    model: str
    file: str
    path: str
    quantisation: str
    architecture: str
    num_parameters: int
    size_bytes: int
    context_tokens: int
    num_layers: int
    num_kv_heads: int
    key_head_dim: int
    value_head_dim: int
    has_chat_template: bool
    source: str
    added_unix_ms: int

    @property
    def kv_shape(self) -> KvShape:
        """Geometry of its KV cache, f16."""
        return KvShape(
            self.num_layers, self.num_kv_heads, self.key_head_dim, self.value_head_dim, "f16"
        )


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model that devices are to serve; `replicas` 0: every device that is selected."""

    model: str
    selector: str
    replicas: int
    created_unix_ms: int
    quantisation: str = ""
    rate_bytes_per_s: int = 0


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a hub knows of one of its devices; `models` by name, as `ModelFacts`."""

    device_id: DeviceId
    name: str
    labels: Mapping[str, str]
    ready: bool
    total_bytes: int
    available_bytes: int
    models: Mapping[str, ModelFacts]
    seen_unix_ms: int


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model as a device reports it."""

    state: str  # LOADING READY RESTARTING FAILED
    sha256: str = ""
    deployed: bool = False
    failure: str = ""
    failure_kind: str = ""  # FETCH DISK FILE ENGINE
    fetched_bytes: int = 0
    file_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """What is wanted of one device for one deployment, what is, and why."""

    model: str
    device_id: DeviceId
    device_name: str
    desired: bool
    actual: str
    reason: str
    sha256: str = ""
    quantisation: str = ""
    slots: int = 0
    context_tokens: int = 0
    rate_bytes_per_s: int = 0
    calculation: tuple[str, ...] = ()
    since_unix_ms: int = 0


def to_json(value: Any) -> str:
    """Any of these values as text."""
    return json.dumps(asdict(value), separators=(",", ":"))


def placement_from(text: str) -> Placement:
    """Inverse of `to_json`."""
    raw = json.loads(text)
    return Placement(**raw | {"calculation": tuple(raw["calculation"])})


def facts_from(text: str) -> DeviceFacts:
    """Inverse of `to_json`."""
    raw = json.loads(text)
    models = {name: ModelFacts(**each) for name, each in raw["models"].items()}
    return DeviceFacts(**raw | {"models": models})


def value_from(kind: type[T], text: str) -> T:
    """Inverse of `to_json` for the flat ones."""
    return kind(**json.loads(text))
