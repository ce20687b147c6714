"""What an engine does with the shared tier: its terms, its figures, why a block stays here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shoal.kv_sharing import SharePolicy


class NotShared(StrEnum):
    """Why a block does not go to the shared tier. The value is part of metrics' names."""

    NO_SHARED_TIER = "no_shared_tier"  # the fleet has none, or its file is damaged
    POLICY_NEVER = "policy_never"
    LOCAL_ONLY = "local_only"  # the request's own wish, whatever the device does
    AUTH_FAILED = "auth_failed"  # the tier refuses this device's user
    UNREACHABLE = "unreachable"  # the breaker is open
    TIER_FULL = "tier_full"  # it has no room and does not evict
    WRITE_LIMIT = "write_limit"  # the bandwidth budget is used up and the queue is full
    QUEUE_FULL = "queue_full"  # blocks come faster than the tier takes them


# What somebody should look at; the others are as their owner wished.
FAULTS = frozenset(
    {
        NotShared.AUTH_FAILED,
        NotShared.UNREACHABLE,
        NotShared.TIER_FULL,
        NotShared.WRITE_LIMIT,
        NotShared.QUEUE_FULL,
    }
)


@dataclass(frozen=True, slots=True)
class SharingState:
    """What an engine does with the shared tier now; `not_shared` None: blocks go there."""

    policy: SharePolicy
    write_bytes_per_s: int  # 0: no limit
    not_shared: NotShared | None = None


@dataclass(frozen=True, slots=True)
class SharedTierConfig:
    """How to reach the shared tier, and how much of the link it may use."""

    url: str  # redis://, rediss:// or unix://, with the agent's own user
    policy: SharePolicy = SharePolicy.ALWAYS
    ca_file: str | None = None  # for rediss://
    write_bytes_per_s: int = 0  # 0: no limit
    read_concurrency: int = 4
    queue_bytes: int = 64 * 1024 * 1024


@dataclass(slots=True)
class SharedCounters:
    """Cumulative since start."""

    hits: int = 0
    misses: int = 0
    damaged: int = 0
    failures: int = 0
    refused_full: int = 0
    written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    write_waits_ms: float = 0.0  # for the bandwidth budget
