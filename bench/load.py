"""A closed loop of streaming chat clients against one OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import aiohttp


@dataclass(frozen=True, slots=True)
class Target:
    """An endpoint and how to ask it."""

    url: str
    model: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One answered request; times in ms from sending."""

    ttft_ms: float
    total_ms: float
    num_tokens: int
    prompt_tokens: int
    cached_tokens: int

    @property
    def tpot_ms(self) -> float:
        """Mean time per output token after the first; 0 with fewer than two."""
        return (self.total_ms - self.ttft_ms) / (self.num_tokens - 1) if self.num_tokens > 1 else 0


@dataclass(slots=True)
class LoadResult:
    """All samples of one run and the wall time they took."""

    wall_s: float = 0.0
    samples: list[Sample] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second of wall time over all clients."""
        return sum(s.num_tokens for s in self.samples) / self.wall_s

    def summary(self) -> dict[str, float]:
        """The figures that the tables quote."""
        return {
            "requests": len(self.samples),
            "tokens_per_s": round(self.tokens_per_s, 1),
            "ttft_p50_ms": round(statistics.median(s.ttft_ms for s in self.samples), 1),
            "tpot_p50_ms": round(statistics.median(s.tpot_ms for s in self.samples), 2),
            "prompt_tokens_p50": statistics.median(s.prompt_tokens for s in self.samples),
            "cached_tokens_p50": statistics.median(s.cached_tokens for s in self.samples),
        }


class RequestFailed(RuntimeError):
    """The answer is an error or no complete stream; `code` is OpenAI's error code or empty."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


async def ask(
    session: aiohttp.ClientSession,
    target: Target,
    messages: list[dict[str, str]],
    max_tokens: int,
    extension: dict[str, object] | None = None,
) -> tuple[Sample, str]:
    """Send one streaming chat request, with shoal's `extension` if given, and time it.

    Raises RequestFailed.
    """
    body: dict[str, object] = {
        "model": target.model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    if extension is not None:
        body["shoal"] = extension
    headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
    started = time.perf_counter()
    first = 0.0
    usage: dict[str, object] = {}
    text: list[str] = []
    async with session.post(
        f"{target.url}/v1/chat/completions", json=body, headers=headers
    ) as answer:
        if answer.status != 200:
            text_of_error = await answer.text()
            with contextlib.suppress(ValueError, KeyError, TypeError):
                code = json.loads(text_of_error)["error"]["code"]
                raise RequestFailed(text_of_error[:300], str(code))
            raise RequestFailed(f"HTTP {answer.status}: {text_of_error[:300]}")
        async for line in answer.content:
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                break
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise RequestFailed(str(chunk["error"]), str(chunk["error"].get("code", "")))
            if chunk["choices"] and (content := chunk["choices"][0]["delta"].get("content")):
                first = first or time.perf_counter()
                text.append(content)
            usage = chunk.get("usage") or usage
    if not usage:
        raise RequestFailed("the stream ended before its end", "broken_off")
    ended = time.perf_counter()
    details = usage.get("prompt_tokens_details") or {}
    sample = Sample(
        ttft_ms=((first or ended) - started) * 1e3,
        total_ms=(ended - started) * 1e3,
        num_tokens=int(usage["completion_tokens"]),
        prompt_tokens=int(usage["prompt_tokens"]),
        cached_tokens=int(details.get("cached_tokens") or 0),
    )
    return sample, "".join(text)


async def closed_loop(
    target: Target, prompts: list[list[dict[str, str]]], num_clients: int, max_tokens: int
) -> LoadResult:
    """Keep `num_clients` requests running until every prompt was answered once."""
    result = LoadResult()
    todo: Iterator[list[dict[str, str]]] = iter(prompts)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True), timeout=timeout
    ) as session:

        async def client() -> None:
            for messages in todo:
                sample, _ = await ask(session, target, messages, max_tokens)
                result.samples.append(sample)

        started = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(num_clients)))
        result.wall_s = time.perf_counter() - started
    return result
