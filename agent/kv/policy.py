"""Fetch or recompute: pure arithmetic on measured numbers, kept for the decision record."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from shoal.blocks import BLOCK_TOKENS
from shoal.kv_fetch import FetchReason

# A fetch must win by this factor: bandwidth estimates swing, recomputing does not.
FETCH_MARGIN = 1.25
# What a shared tier that fails, or a disk that hangs, may cost a request beyond its cold time.
STALL_LIMIT_MS = 400.0


@dataclass(frozen=True, slots=True)
class FetchInputs:
    """What is known when a prefix is found in the shared tier. None: not measured yet."""

    num_blocks: int
    block_bytes: int
    bandwidth_bytes_per_s: float | None
    round_trip_ms: float
    prefill_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class FetchDecision:
    """The choice with the values that made it."""

    fetch: bool
    reason: FetchReason
    num_blocks: int
    fetch_ms: float | None
    recompute_ms: float
    bandwidth_mb_per_s: float | None
    prefill_tokens_per_s: float

    def to_json(self) -> str:
        """One line for `Timings.kv_decision`."""
        return json.dumps(
            {
                key: round(value, 2) if isinstance(value, float) else value
                for key, value in asdict(self).items()
            }
        )


def fetch_or_recompute(inputs: FetchInputs) -> FetchDecision:
    """Whether fetching `num_blocks` beats prefilling them.

    An unmeasured link is tried: the wait is bounded by `fetch_deadline_ms`.
    """
    recompute_ms = recompute_time_ms(inputs.num_blocks, inputs.prefill_tokens_per_s)
    if inputs.num_blocks == 0:
        return _decide(inputs, False, FetchReason.NOT_HELD, (None, recompute_ms))
    if inputs.bandwidth_bytes_per_s is None or inputs.bandwidth_bytes_per_s <= 0:
        return _decide(inputs, True, FetchReason.LINK_UNMEASURED, (None, recompute_ms))
    if inputs.prefill_tokens_per_s <= 0:
        return _decide(inputs, True, FetchReason.PREFILL_UNMEASURED, (None, recompute_ms))
    transfer_s = inputs.num_blocks * inputs.block_bytes / inputs.bandwidth_bytes_per_s
    fetch_ms = inputs.round_trip_ms + 1000.0 * transfer_s
    fetch = fetch_ms * FETCH_MARGIN < recompute_ms
    reason = FetchReason.FETCH_FASTER if fetch else FetchReason.RECOMPUTE_AS_FAST
    return _decide(inputs, fetch, reason, (fetch_ms, recompute_ms))


def recompute_time_ms(num_blocks: int, prefill_tokens_per_s: float) -> float:
    """Time to prefill blocks at the measured speed; 0 blocks or speed give 0."""
    if prefill_tokens_per_s <= 0:
        return 0.0
    return 1000.0 * num_blocks * BLOCK_TOKENS / prefill_tokens_per_s


def fetch_deadline_ms(started_ms: float, num_arrived: int, prefill_tokens_per_s: float) -> float:
    """When to give up on a fetch: each block that arrived buys the time it saved.

    So a fetch that stalls at any point has cost at most STALL_LIMIT_MS more than
    computing everything.
    """
    return started_ms + STALL_LIMIT_MS + recompute_time_ms(num_arrived, prefill_tokens_per_s)


def _decide(
    inputs: FetchInputs, fetch: bool, reason: FetchReason, times_ms: tuple[float | None, float]
) -> FetchDecision:
    bandwidth = inputs.bandwidth_bytes_per_s
    return FetchDecision(
        fetch=fetch,
        reason=reason,
        num_blocks=inputs.num_blocks,
        fetch_ms=times_ms[0],
        recompute_ms=times_ms[1],
        bandwidth_mb_per_s=None if bandwidth is None else bandwidth / 1e6,
        prefill_tokens_per_s=inputs.prefill_tokens_per_s,
    )
