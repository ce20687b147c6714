"""What to try, and which of the tried is best; pure.

Only what the engine found batch-invariant is chosen: a text must not depend on who else runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.calibration.kv_types import KvTried, KvType

# A usual request: what a candidate's seconds are counted for.
_PROMPT_TOKENS = 512
_OUTPUT_TOKENS = 128
# Within this of the fastest, the larger file wins: more bits a weight lose less.
_NEAR = 1.10
# Slots beyond this share of the best throughput bring little and cost KV memory.
_ENOUGH = 0.95
# A short measurement is noisy, and too few slots make people wait: not below this.
_FEWEST_SLOTS = 4


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to serve a model; `threads` None: one per usable CPU."""

    file: Path
    threads: int | None = None
    kv_type: str = "f16"

    def __str__(self) -> str:
        kv = "" if self.kv_type == "f16" else f", KV in {self.kv_type}"
        return f"{self.file.name}, {self.threads or 'all'} threads{kv}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a candidate; `failure` empty: it served, at these tokens a second.

    `invariant`, `any_cut`: its text depended on no batch, and on no cut of its prompt.
    `lacks`: `time` or `memory`, where it failed for want of that.
    """

    candidate: Candidate
    failure: str = ""
    size_bytes: int = 0
    prefill: float = 0.0
    decode_batch: tuple[float, ...] = ()
    invariant: bool = False
    any_cut: bool = False
    lacks: str = ""

    @property
    def serves(self) -> bool:
        """Whether it can be chosen at all."""
        return not self.failure and self.prefill > 0 and bool(self.decode_batch)

    @property
    def seconds(self) -> float:
        """For one usual request, alone."""
        return _PROMPT_TOKENS / self.prefill + _OUTPUT_TOKENS / self.decode_batch[0]


@dataclass(frozen=True, slots=True)
class Choice:
    """What was found to be best; `kv` is chosen from what was `tried`, when it is used."""

    file: Path
    threads: int | None
    slots: int
    tried: KvTried
    kv: KvType | None = None

    def __str__(self) -> str:
        kv = f", {self.kv}" if self.kv else ""
        return f"{self.file.name}, {self.threads or 'all'} threads, {self.slots} slots{kv}"


def thread_counts(cpus: int, physical_cores: int) -> tuple[int, ...]:
    """Counts worth trying beside all CPUs: the cores without their siblings, and half."""
    return tuple(sorted({physical_cores, max(1, cpus // 2)} - {0, cpus}, reverse=True))


def best(outcomes: Iterable[Outcome]) -> Outcome | None:
    """The fastest that serves, invariant ones first; among near ones the larger file."""
    serving = [each for each in outcomes if each.serves]
    serving = [each for each in serving if each.invariant] or serving
    if not serving:
        return None
    limit_s = min(each.seconds for each in serving) * _NEAR
    near = [each for each in serving if each.seconds <= limit_s]
    return min(near, key=lambda each: (-each.size_bytes, each.seconds))


def why_none(tried: Sequence[Outcome], limit_s: float) -> str:
    """Why none of the tried serves, in words; for want of time it names the option."""
    if any(each.lacks == "time" for each in tried):
        return f"{limit_s:g} s are too short to measure it here; give it more with --limit-s"
    if any(each.lacks == "memory" for each in tried):
        return "there is not enough free memory to try it"
    return "no candidate serves on this device"


def slots_for(decode_batch: Sequence[float]) -> int:
    """The fewest sequences at once that reach nearly the best throughput; a power of two."""
    enough = _ENOUGH * max(decode_batch)
    fewest = next(i for i, rate in enumerate(decode_batch) if rate >= enough)
    return max(_FEWEST_SLOTS, 1 << fewest)


def compare_kv(f16: Outcome, q8_0: Outcome | None, *, confirmed: bool = False) -> KvTried:
    """What the two say of q8_0, which must depend on no more than f16 does; None: not tried."""
    if q8_0 is None or not q8_0.serves:
        why = "not tried" if q8_0 is None else q8_0.failure or "it measured nothing"
        return KvTried(f16.seconds, failure=why)
    invariant = q8_0.invariant and (q8_0.any_cut or not f16.any_cut)
    return KvTried(f16.seconds, q8_0.seconds, invariant, confirmed=confirmed)


def choice_of(outcome: Outcome, q8_0: Outcome | None = None, *, confirmed: bool = False) -> Choice:
    """The settings that the outcome, of f16, speaks for; `q8_0`: the same with that KV type.

    `confirmed`: f16 was measured once more after it.
    """
    candidate = outcome.candidate
    return Choice(
        candidate.file,
        candidate.threads,
        slots_for(outcome.decode_batch),
        compare_kv(outcome, q8_0, confirmed=confirmed),
    )
