"""The seam between the gateway and whatever generates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shoal.http import generation as http
from shoal.openai.tier_use import TierUse
from shoal.v1 import inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class Try:
    """One endpoint that was asked; `failed` empty: it served, or still runs."""

    endpoint: str
    started_unix_ms: int
    failed: str = ""


@dataclass(slots=True)
class Account:
    """What a generation used of tiers that cost money, and whom it asked there."""

    uses: dict[str, TierUse] = field(default_factory=dict)
    tries: list[Try] = field(default_factory=list)
    # By tier, as far as known; and what a cascade decided, by which values.
    joules: dict[str, float] = field(default_factory=dict)
    cascade: dict[str, object] | None = None
    # By which ids hubs keep their records of it; empty: by the request's own.
    hub_ids: list[str] = field(default_factory=list)
    # Of these ids, those whose answer was not used and that have not failed: why not.
    given_up: dict[str, str] = field(default_factory=dict)


class Generation(http.Generation, Protocol):
    """One running sequence, and whom it asked."""

    @property
    def account(self) -> Account:
        """What it used so far; complete when the last update was taken."""
        ...


def has_output(updates: Sequence[pb.SequenceUpdate]) -> bool:
    """Whether the updates hold anything that a client may have seen."""
    return any(update.HasField("delta") or update.HasField("finished") for update in updates)
