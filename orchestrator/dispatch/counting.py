"""Tokens as we count them, beside what an endpoint claims; pure.

An endpoint is believed within bounds that follow from the text itself, which we saw:

- a token is at least one byte of text, so no text has more tokens than bytes;
- few tokenisers put more than 16 bytes of real text into a token on average (English
  has about 4), so a text of n bytes has at least n/16 tokens;
- an endpoint streams at least one token a chunk.

Outside them the nearest bound counts, and the answer says so. Hidden tokens
(reasoning) have no text but are bounded by the request's `max_tokens`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shoal.v1 import inference_pb2 as pb

_MOST_BYTES_PER_TOKEN = 16
# Without any claim: more tokens than English has, fewer than most other text has bytes.
_ESTIMATED_BYTES_PER_TOKEN = 3
# What a chat template may add around each message, and around all.
_TEMPLATE_TOKENS_PER_MESSAGE = 16
_TEMPLATE_TOKENS = 256
# How far an answer may run past `max_tokens` by our count before it is cut off. What comes in
# between is neither delivered nor charged; its usage may still come.
_OVERRUN_TOKENS = 16
_OVERRUN_BYTES_PER_TOKEN = 64


class UsageFlag(StrEnum):
    """What is wrong with an endpoint's usage; empty: nothing."""

    FINE = ""
    MISSING = "usage_missing"
    UNDER_REPORTED = "usage_under_reported"
    OVER_REPORTED = "usage_over_reported"
    OVERRAN = "max_tokens_overrun"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Least, estimated and most tokens that something can have."""

    least: int
    estimate: int
    most: int

    def within(self, claimed: int | None) -> tuple[int, UsageFlag]:
        """The count to charge, and what was wrong with the claim."""
        if claimed is None:
            return self.estimate, UsageFlag.MISSING
        if claimed < self.least:
            return max(self.least, self.estimate), UsageFlag.UNDER_REPORTED
        if claimed > self.most:
            return self.most, UsageFlag.OVER_REPORTED
        return claimed, UsageFlag.FINE


@dataclass(frozen=True, slots=True)
class Counted:
    """Tokens to charge for one answer or part of one."""

    prompt_tokens: int
    completion_tokens: int
    flags: tuple[UsageFlag, ...] = ()


def prompt_bounds(request: pb.GenerateRequest) -> Bounds:
    """What the prompt can be in tokens, by its bytes; exact for token ids."""
    kind = request.WhichOneof("prompt")
    if kind == "tokens":
        count = len(request.tokens.ids)
        return Bounds(count, count, count + _TEMPLATE_TOKENS)
    messages = request.chat.messages if kind == "chat" else ()
    num_bytes = sum(len(m.content.encode()) + len(m.name.encode()) for m in messages)
    num_bytes += len(request.text.encode())
    template = _TEMPLATE_TOKENS + _TEMPLATE_TOKENS_PER_MESSAGE * len(messages)
    estimate = _ceil(num_bytes, _ESTIMATED_BYTES_PER_TOKEN) + 4 * len(messages)
    return Bounds(_ceil(num_bytes, _MOST_BYTES_PER_TOKEN), estimate, num_bytes + template)


def reserved_prompt_tokens(request: pb.GenerateRequest) -> int:
    """What to set aside for a prompt before it is sent: two bytes a token and the template."""
    if request.WhichOneof("prompt") == "tokens":
        return len(request.tokens.ids)
    most = prompt_bounds(request).most - _TEMPLATE_TOKENS
    return _ceil(most, 2) + _TEMPLATE_TOKENS_PER_MESSAGE * max(1, len(request.chat.messages))


class AnswerCount:
    """What has come of one answer; `max_tokens` None: the request gave no limit."""

    def __init__(self, max_tokens: int | None) -> None:
        self._max_tokens = max_tokens
        self.num_deltas = 0
        self.num_bytes = 0

    def add(self, text: str) -> None:
        """Count one delta."""
        self.num_deltas += 1
        self.num_bytes += len(text.encode("utf-8", "surrogatepass"))

    @property
    def fits(self) -> bool:
        """Whether no more has come than `max_tokens` can be."""
        if self._max_tokens is None:
            return True
        allowed_bytes = (self._max_tokens + _OVERRUN_TOKENS) * _OVERRUN_BYTES_PER_TOKEN
        return self.num_deltas <= self._max_tokens and self.num_bytes <= allowed_bytes

    @property
    def overran(self) -> bool:
        """Whether so much more came than `max_tokens` that no end is worth waiting for."""
        if self._max_tokens is None:
            return False
        allowed = self._max_tokens + _OVERRUN_TOKENS
        return self.num_deltas > allowed or self.num_bytes > allowed * _OVERRUN_BYTES_PER_TOKEN

    def bounds(self) -> Bounds:
        """What the answer can be in tokens; never more than `max_tokens`."""
        least = max(self.num_deltas, _ceil(self.num_bytes, _MOST_BYTES_PER_TOKEN))
        estimate = max(self.num_deltas, _ceil(self.num_bytes, _ESTIMATED_BYTES_PER_TOKEN))
        if self._max_tokens is None:
            # Hidden tokens are not bounded by anything that we saw.
            return Bounds(least, estimate, max(estimate, self.num_bytes + _TEMPLATE_TOKENS))
        most = self._max_tokens
        return Bounds(min(least, most), min(estimate, most), most)

    def counted(self, prompt: Bounds, claimed: pb.Usage | None) -> Counted:
        """Tokens to charge. Claims of 0 completion tokens for an empty answer are fine."""
        if claimed is None:
            flags = [UsageFlag.MISSING]
            tokens = (prompt.estimate, self.bounds().estimate)
        else:
            prompt_tokens, prompt_flag = prompt.within(claimed.prompt_tokens)
            completion_tokens, flag = self.bounds().within(claimed.completion_tokens)
            tokens = (prompt_tokens, completion_tokens)
            flags = [each for each in dict.fromkeys((prompt_flag, flag)) if each]
        if not self.fits:
            flags.append(UsageFlag.OVERRAN)
        return Counted(*tokens, tuple(flags))


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
