"""How fast a companion serves, seen from outside: what the router predicts from.

The server's own claims are not used. Prompts differ in their first words, so that a server
which keeps prefixes does not answer from memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import structlog

from agent.companion.upstream import Upstream
from shoal.v1 import inference_pb2 as pb

log = structlog.get_logger()

_OUTPUT_TOKENS = 24
# About 250 tokens: past warm-up, and a second on a slow NPU.
_PROMPT_WORDS = 190
# All of it may take no longer; what is measured until then counts.
_LIMIT_S = 20.0
_WORDS = ("river", "stone", "engine", "market", "garden", "signal", "harbor", "winter")


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second; 0: not measured. `decode_batch[i]`: the total over 2^i requests."""

    prefill: float = 0.0
    decode_batch: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class _Timed:
    """One answer; seconds to its first and last piece, tokens as the server counted them."""

    first_s: float
    last_s: float
    prompt_tokens: int
    completion_tokens: int


class SelfTest:
    """Sends a few requests of its own; the server should be doing nothing else."""

    def __init__(
        self, upstream: Upstream, slots: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._upstream = upstream
        self._slots = slots
        self._clock = clock
        self._num_asked = 0
        self._speed = Speed()

    async def prove(self) -> None:
        """One short answer, whatever it takes; ShoalError from a server that gives none.

        It also has the server load what it loads late.
        """
        await self._ask(_PROMPT_WORDS // 8, 4)

    async def run(self) -> Speed:
        """Prove, then measure for at most 20 s; ShoalError when an answer fails."""
        await self.prove()
        try:
            async with asyncio.timeout(_LIMIT_S):
                await self._measure()
        except TimeoutError:
            log.info("companion_selftest_cut_short", limit_s=_LIMIT_S)
        return self._speed

    async def _measure(self) -> None:
        """Keep each figure as soon as it is known: the limit may come before the next."""
        short = await self._ask(_PROMPT_WORDS // 8, _OUTPUT_TOKENS)
        decode = [_decode_rate([short])]
        self._speed = Speed(0.0, tuple(decode))
        long = await self._ask(_PROMPT_WORDS, 1)
        # What the short prompt's first token took beyond its own prefill is the way there.
        more_tokens = long.prompt_tokens - short.prompt_tokens
        more_s = long.first_s - short.first_s
        if more_tokens <= 0 or more_s <= 0:
            more_tokens, more_s = long.prompt_tokens, long.first_s
        prefill = more_tokens / more_s if more_s > 0 else 0.0
        self._speed = Speed(prefill, tuple(decode))
        size = 2
        while size <= self._slots:
            asked = (self._ask(_PROMPT_WORDS // 8, _OUTPUT_TOKENS) for _ in range(size))
            decode.append(_decode_rate(await asyncio.gather(*asked)))
            self._speed = Speed(prefill, tuple(decode))
            size *= 2

    async def _ask(self, num_words: int, max_tokens: int) -> _Timed:
        self._num_asked += 1
        words = [f"{self._num_asked}."]
        words += [_WORDS[(self._num_asked + 3 * i) % len(_WORDS)] for i in range(num_words)]
        request = pb.GenerateRequest(
            request_id=f"selftest-{self._num_asked}",
            chat=pb.ChatPrompt(
                messages=[pb.ChatMessage(role="user", content=f"Go on: {' '.join(words)}")]
            ),
            sampling=pb.Sampling(temperature=0.0),
            max_tokens=max_tokens,
        )
        began_s = self._clock()
        first_s = last_s = 0.0
        num_deltas, usage = 0, None
        async with aclosing(self._upstream.stream(request)) as pieces:
            async for piece in pieces:
                usage = piece.usage or usage
                if piece.delta is not None:
                    last_s = self._clock() - began_s
                    first_s = first_s or last_s
                    num_deltas += 1
        took_s = self._clock() - began_s
        return _Timed(
            first_s or took_s,
            last_s or took_s,
            usage.prompt_tokens if usage else num_words,
            usage.completion_tokens if usage else num_deltas,
        )


def _decode_rate(answers: Sequence[_Timed]) -> float:
    """Tokens a second over answers that were asked for at one moment, after the first token."""
    tokens = sum(max(0, each.completion_tokens - 1) for each in answers)
    seconds = max(each.last_s for each in answers) - min(each.first_s for each in answers)
    return tokens / seconds if tokens and seconds > 0 else 0.0
