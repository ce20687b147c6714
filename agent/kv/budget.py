"""The memory of the KV cache on this device; hub and device calculate alike (shoal.kv_budget)."""

from __future__ import annotations

from shoal.kv_budget import (
    CELL_MULTIPLE,
    ELEMENT_BYTES,
    LIVE_SHARE_OF_AVAILABLE,
    MAX_HOST_BYTES,
    MIB,
    FitRequest,
    KvBudget,
    KvShape,
    default_context_tokens,
    host_tier_bytes,
    plan_kv,
)

__all__ = [
    "CELL_MULTIPLE",
    "ELEMENT_BYTES",
    "LIVE_SHARE_OF_AVAILABLE",
    "MAX_HOST_BYTES",
    "MIB",
    "FitRequest",
    "KvBudget",
    "KvShape",
    "default_context_tokens",
    "host_tier_bytes",
    "plan_kv",
]
