"""Settings of the processes of a device."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from shoal.kv_sharing import SharePolicy

# Prefill is always cut at multiples of this many tokens from the start of a
# sequence; it is also the number of tokens of a KV block.
BLOCK_TOKENS = 128


@dataclass(frozen=True, slots=True)
class PrefixCacheConfig:
    """Where an engine keeps KV blocks, and how many bytes of them."""

    # None: a bounded share of the available memory (shoal.kv_budget).
    host_bytes: int | None = None
    # About 700 blocks of the default model; a small part of any disk that holds models.
    disk_bytes: int = 2 * 1024**3
    # None: no disk tier, blocks end with the process.
    directory: Path | None = None
    # File (mode 0600) with the way to the shared tier; None or absent: no shared tier.
    shared_access: Path | None = None
    # Which blocks go there, and at most so many bytes per second (0: no limit); None: as usual.
    share_policy: SharePolicy | None = None
    share_bytes_per_s: int | None = None


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What one engine process is told at its start; see `agent.llama.serve --help`."""

    model_path: Path
    model_name: str
    socket_path: Path
    # 8 sequences reach about twice the decode speed of one on 2 cores; more bring
    # little there and cost KV memory.
    slots: int = 8
    # None: the model's own, or what fits (shoal.kv_budget).
    context_tokens: int | None = None
    # None: one per CPU that this process may run on.
    threads: int | None = None
    # More concurrent requests than this: throughput mode (DOMAIN.md's figure).
    batch_threshold: int = 4
    # Prefill chunks between two decode steps in throughput mode.
    throughput_chunks: int = 4
    max_waiting: int = 64
    # Elements of the KV cache, a key of shoal.kv_budget.ELEMENT_BYTES.
    kv_type: str = "f16"
    # A model that loads for longer counts as broken.
    load_limit_s: float = 600.0
    # Sequences whose batched output would differ from a single run are decoded alone.
    require_batch_invariance: bool = True
    measure: bool = True
    # None: every prompt is computed anew.
    prefix_cache: PrefixCacheConfig | None = PrefixCacheConfig()
    # Folder of the device's key and certificate, shown to verifiers; None: it dials none.
    identity_dir: Path | None = None
    # None: whoever started the process. A starter that may die at once names itself.
    parent_pid: int | None = None
    # Empty: the environment's, else info.
    log_level: str = ""


# Turns that a compute thread spins at a barrier before it sleeps (libgomp's
# GOMP_SPINCOUNT), about 50 µs. Measured on 2 cores, SmolLM2-135M Q4_0, decode of one
# sequence, tokens/s: with libgomp's own default 115-166 on idle cores and 0.3-1.8
# beside other busy processes, where threads spin whole time slices away; with 1000
# 132 and 16-23; with sleeping at once 42 and 41-73.
_SPIN_COUNT = "1000"


def bound_spinning() -> None:
    """Set how long compute threads spin, unless the environment says so already.

    Effects on this process's environment; works only before libgomp is loaded.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)


def engine_build_environment(cache: Path) -> dict[str, str]:
    """This process's environment for build_engine.py, which keeps what it builds in `cache`."""
    environment = os.environ | {"XDG_CACHE_HOME": str(cache), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # Its modules lie in its own folder.
    environment.pop("PYTHONSAFEPATH", None)
    return environment
