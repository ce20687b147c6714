"""Counts of one drafted request, for its last word."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent.engine.output import Finished, Speculated


@dataclass(slots=True)
class Tally:
    """`edge`: drafts that stood; `cloud`: the target's own tokens; `edge_alone`: unverified."""

    target: str
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    target_passes: int = 0
    edge: int = 0
    cloud: int = 0
    edge_alone: int = 0
    fallback: str = ""
    because: str = ""
    round_trip_ms: float = 0.0

    def count_round(self, num_drafted: int, num_accepted: int) -> None:
        """One pass of the target over drafts."""
        self.rounds += 1
        self.target_passes += 1
        self.drafted += num_drafted
        self.accepted += num_accepted

    @property
    def _mode(self) -> str:
        if not self.cloud or self.edge_alone > self.edge + self.cloud:
            return "edge_alone"
        return "speculative" if self.rounds else "target_alone"

    def into(self, finished: Finished) -> Finished:
        """The end of the request with how it came about."""
        # A round's last tokens may lie beyond the request's end: they are nobody's.
        beyond = self.edge + self.cloud + self.edge_alone - finished.completion_tokens
        cloud = max(0, self.cloud - max(0, beyond))
        edge = finished.completion_tokens - cloud
        return replace(
            finished,
            speculated=Speculated(
                mode=self._mode,
                target=self.target,
                rounds=self.rounds,
                drafted_tokens=self.drafted,
                accepted_tokens=self.accepted,
                tokens_by_tier={"edge": edge, "cloud": cloud},
                target_passes=self.target_passes,
                fallback=self.fallback,
                round_trip_ms=self.round_trip_ms,
                because=self.because,
            ),
        )
