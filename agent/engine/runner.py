"""The seam between the step loop and whatever computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from agent.engine.output import SampledToken
from agent.engine.request import SamplingParams


class RunnerError(Exception):
    """The computation failed; the context is not to be used further."""


class DecodeItem(NamedTuple):
    """One sequence's newest token, not yet in its KV."""

    slot: int
    position: int
    token: int


class Sampler(Protocol):
    """A request's sampler between two slots: its random state and what it counted."""

    def close(self) -> None:
        """Free it; only for one that comes back into no slot."""


class Runner(Protocol):
    """Computes for `slots` independent sequences; only ever called by one thread.

    Every method but the three cheap lookups may raise `RunnerError`.
    """

    @property
    def slots(self) -> int:
        """Sequences that can run at once."""

    @property
    def context_tokens(self) -> int:
        """Tokens that fit into one sequence."""

    def start(self, slot: int, sampling: SamplingParams, prompt: Sequence[int]) -> None:
        """Empty the slot's KV and give it the request's sampler."""

    def prefill(
        self, slot: int, tokens: Sequence[int], position: int, *, want_token: bool
    ) -> SampledToken | None:
        """Put the tokens into the KV from `position` on; sample after the last if wanted."""

    def decode(self, batch: Sequence[DecodeItem]) -> list[SampledToken]:
        """Put one token of each sequence into its KV and sample the next, in order."""

    def clear(self, slot: int) -> None:
        """Empty the slot's KV and free its sampler."""

    def detach(self, slot: int) -> Sampler:
        """Empty the slot's KV and give its sampler out, as it stands."""

    def attach(self, slot: int, sampler: Sampler) -> None:
        """Empty the slot's KV and give it a detached sampler."""

    def state_get(self, slot: int) -> memoryview:
        """The sequence's KV as llama.cpp's own blob; valid until the next call."""

    def state_set(self, slot: int, blob: bytes | memoryview) -> int:
        """Replace the sequence's KV with an authenticated blob; the number of bytes read."""

    def piece(self, token: int) -> bytes:
        """The token's bytes as they appear in output; empty for control tokens."""

    def is_end(self, token: int) -> bool:
        """True for an end-of-generation token."""
