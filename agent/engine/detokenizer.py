"""Tokens to text, piece by piece: whole UTF-8 characters, no part of a stop string."""

from __future__ import annotations

import codecs
from collections import deque

from agent.engine.output import SampledToken
from agent.engine.stops import StopMatcher


class Detokenizer:
    """Turns one sequence's tokens into the text and the tokens that may be output.

    A token is released with the text that completes it, so that neither text nor
    log-probabilities tell a stop string that is about to be cut off. Bytes that
    can no longer become a character come out as U+FFFD.
    """

    def __init__(self, stops: StopMatcher) -> None:
        self._stops = stops
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending: deque[tuple[int, SampledToken]] = deque()
        self._decoded_chars = 0
        self._released_chars = 0

    @property
    def stopped(self) -> bool:
        """True once a stop string was found; the text before it has been returned."""
        return self._stops.matched

    def feed(self, sampled: SampledToken, piece: bytes) -> tuple[str, tuple[SampledToken, ...]]:
        """The text and tokens that this token releases; either may be empty."""
        text = self._decoder.decode(piece)
        self._decoded_chars += len(text)
        self._pending.append((self._decoded_chars, sampled))
        return self._release(self._stops.feed(text))

    def finish(self) -> tuple[str, tuple[SampledToken, ...]]:
        """What was still held back; to be called once, when no stop string was found."""
        tail = self._decoder.decode(b"", True)
        self._decoded_chars += len(tail)
        text = self._stops.feed(tail) if tail else ""
        if not self._stops.matched:
            text += self._stops.flush()
        return self._release(text)

    def _release(self, text: str) -> tuple[str, tuple[SampledToken, ...]]:
        self._released_chars += len(text)
        tokens = []
        while self._pending and self._pending[0][0] <= self._released_chars:
            tokens.append(self._pending.popleft()[1])
        return text, tuple(tokens)
