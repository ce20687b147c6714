"""What an engine step produces, as values: tokens, ends, failures, load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from agent.engine.request import RequestKey
from agent.kv.sharing import SharingState
from shoal.errors import ShoalError


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural logarithm of a token's probability before temperature, and the likeliest."""

    logprob: float
    # (token, logprob), likeliest first.
    top: tuple[tuple[int, float], ...] = ()


class Confidence(NamedTuple):
    """How sure the model was of a token, before temperature.

    `logprob` of the sampled token and `entropy` of all, in nats; `margin`: the likeliest
    token's probability less the second's.
    """

    logprob: float
    entropy: float
    margin: float


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token that the runner chose; the rest only when it was asked for."""

    token: int
    logprob: Logprob | None = None
    confidence: Confidence | None = None


class FinishReason(StrEnum):
    """Why a generation ended in good order."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations of one request at this engine, in ms; `mean_batch` in sequences.

    `queue_ms` and `total_ms` include, `prefill_ms` and `tpot_ms` exclude being parked.
    `compute_ms`: its share of computing, its own prefills and each decode step / batch.
    `busy_ms`: what the engine computed for anybody between its arrival and its end.
    """

    queue_ms: float
    prefill_ms: float
    ttft_ms: float
    tpot_ms: float
    total_ms: float
    mean_batch: int
    kv_decision: str = ""
    kv_restore_ms: Mapping[str, float] = field(default_factory=dict)  # see inference.proto
    compute_ms: float = 0.0
    busy_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Speculated:
    """How a drafted sequence came about; see inference.proto."""

    mode: str
    target: str = ""
    rounds: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    tokens_by_tier: Mapping[str, int] = field(default_factory=dict)
    target_passes: int = 0
    fallback: str = ""
    round_trip_ms: float = 0.0
    because: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a request, with its usage."""

    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens_by_tier: Mapping[str, int]
    timings: Timings
    # How it was made when a larger model verified it, or was to.
    speculated: Speculated | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """News of one request; several parts may be present at once."""

    key: RequestKey
    prompt_tokens: int | None = None  # with queue_position: the request was admitted
    queue_position: int = 0
    text: str = ""
    tokens: tuple[SampledToken, ...] = ()
    finished: Finished | None = None
    failed: ShoalError | None = None

    @property
    def is_terminal(self) -> bool:
        """True for the last update of its request."""
        return self.finished is not None or self.failed is not None


def joined(updates: list[Update]) -> list[Update]:
    """The same news with one update for each run of a request's text, its end included."""
    result: list[Update] = []
    places: dict[RequestKey, int] = {}
    for update in updates:
        place = places.get(update.key)
        if place is None or update.prompt_tokens is not None:
            places[update.key] = len(result)
            result.append(update)
            continue
        earlier = result[place]
        result[place] = replace(
            earlier,
            text=earlier.text + update.text,
            tokens=earlier.tokens + update.tokens,
            finished=update.finished,
            failed=update.failed,
        )
    return result


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the engine is; speeds over the last seconds, 0 when idle."""

    running: int
    waiting: int
    waiting_prefill_tokens: int
    slots: int
    kv_used_tokens: int
    kv_capacity_tokens: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    host_kv_bytes: int = 0
    disk_kv_bytes: int = 0
    counters: Mapping[str, float] = field(default_factory=dict)
    sharing: SharingState | None = None  # None: prefixes are not cached
