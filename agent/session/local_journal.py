"""What this device served to its own clients, until a hub has it on record; pure.

Counts and times, no words. A report is told again, unchanged, until it is acknowledged;
what is served meanwhile goes into the next one. So each request is counted once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Served:
    """One local request that ended. Times in ms; joules None: not known."""

    model: str
    # finished | failed | cancelled
    end: str
    connected: bool
    unix_ms: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    ttft_ms: float = 0.0
    prefill_ms: float = 0.0
    total_ms: float = 0.0
    joules: float | None = None


@dataclass(slots=True)
class Usage:
    """Sums over one model's requests."""

    model: str
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    without_hub: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    ttft_ms: float = 0.0
    prefill_ms: float = 0.0
    total_ms: float = 0.0
    joules: float = 0.0
    first_unix_ms: int = 0
    last_unix_ms: int = 0

    def add(self, served: Served) -> None:
        """Count one request."""
        self.finished += served.end == "finished"
        self.failed += served.end == "failed"
        self.cancelled += served.end == "cancelled"
        self.without_hub += not served.connected
        self.prompt_tokens += served.prompt_tokens
        self.completion_tokens += served.completion_tokens
        self.cached_tokens += served.cached_tokens
        self.ttft_ms += served.ttft_ms
        self.prefill_ms += served.prefill_ms
        self.total_ms += served.total_ms
        self.joules += served.joules or 0.0
        self.first_unix_ms = self.first_unix_ms or served.unix_ms
        self.last_unix_ms = served.unix_ms


@dataclass(frozen=True, slots=True)
class Report:
    """What is told to the hub at once."""

    journal: str
    sequence: int
    usages: Sequence[Usage]


class LocalJournal:
    """Sums that no hub has confirmed yet; `version` grows with each change."""

    def __init__(self, journal: str) -> None:
        self.version = 0
        self._journal = journal
        self._sequence = 0
        self._told: list[Usage] = []
        self._next: dict[str, Usage] = {}

    def note(self, served: Served) -> None:
        """Count a request that ended."""
        self._next.setdefault(served.model, Usage(served.model)).add(served)
        self.version += 1

    def report(self) -> Report | None:
        """What to tell now: the unconfirmed report, else a new one; None when there is nothing."""
        if not self._told and self._next:
            self._told, self._next = list(self._next.values()), {}
            self._sequence += 1
            self.version += 1
        return Report(self._journal, self._sequence, tuple(self._told)) if self._told else None

    def acknowledged(self, journal: str, sequence: int) -> None:
        """The hub has the report; an echo of an earlier one changes nothing."""
        if (journal, sequence) == (self._journal, self._sequence) and self._told:
            self._told = []
            self.version += 1

    def to_json(self) -> str:
        """All of it, for a file."""
        return json.dumps(
            {
                "journal": self._journal,
                "sequence": self._sequence,
                "told": [asdict(usage) for usage in self._told],
                "next": [asdict(usage) for usage in self._next.values()],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> LocalJournal:
        """Inverse of `to_json`; ValueError, KeyError or TypeError for anything else."""
        raw = json.loads(text)
        journal = cls(str(raw["journal"]))
        journal._sequence = int(raw["sequence"])
        journal._told = [Usage(**usage) for usage in raw["told"]]
        journal._next = {usage["model"]: Usage(**usage) for usage in raw["next"]}
        return journal

    def check_integrity(self) -> None:
        """Raise RuntimeError when the state contradicts itself."""
        if self._told and not self._sequence:
            raise RuntimeError("a report without a sequence")
        if any(model != usage.model for model, usage in self._next.items()):
            raise RuntimeError("a usage under another model's name")
