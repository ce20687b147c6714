"""The chat template of a model, rendered in a killable process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.errors import invalid

# A rendering takes under a millisecond; seconds mean a template that does not end.
RENDER_LIMIT_S = 2.0
# Longest line on the pipe: prompts reach 32 MiB, JSON escapes make them longer.
_MAX_LINE_BYTES = 256 * 1024 * 1024


class TemplateError(Exception):
    """The model's template does not compile; chats cannot be rendered with it."""


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """A template and what it may ask for."""

    text: str
    bos: str = ""
    eos: str = ""
    limit_s: float = RENDER_LIMIT_S


class ChatTemplate:
    """Renders chats one at a time; restarts its process after a rendering was killed."""

    def __init__(self, source: TemplateSource) -> None:
        self._source = source
        self._process: Process | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Compile the template; raises TemplateError when that fails or does not end."""
        async with self._lock:
            await self._ensure_process()

    async def render(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Any] | None = None
    ) -> str:
        """The prompt's text; a refusal that names `messages` when the template refuses.

        The process is replaced when this coroutine is cancelled half-way.
        """
        async with self._lock:
            process = await self._ensure_process()
            done = False
            try:
                reply = await _ask(process, {"messages": list(messages), "tools": tools})
                done = reply is not None
            finally:
                if not done:
                    await self._stop()
        if reply is None:
            raise invalid(
                "messages",
                "messages: the model's chat template did not finish within "
                f"{self._source.limit_s:g} s or ran out of memory with these messages",
            )
        if "error" in reply:
            raise invalid(
                "messages", f"messages: the model's chat template refuses them: {reply['error']}"
            )
        return str(reply["text"])

    async def close(self) -> None:
        """End the process."""
        async with self._lock:
            await self._stop()

    async def _ensure_process(self) -> Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "agent.engine.template_worker",
            stdin=PIPE,
            stdout=PIPE,
            limit=_MAX_LINE_BYTES,
        )
        self._process = process
        source = self._source
        reply = await _ask(
            process,
            {
                "template": source.text,
                "bos": source.bos,
                "eos": source.eos,
                "limit_s": source.limit_s,
            },
        )
        if reply is None or "error" in reply:
            await self._stop()
            raise TemplateError(reply["error"] if reply else "compiling it does not end")
        return process

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                process.send_signal(signal.SIGKILL)
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()


async def _ask(process: Process, question: Mapping[str, Any]) -> dict[str, Any] | None:
    """The worker's answer; None when it died over the question."""
    if process.stdin is None or process.stdout is None:
        raise AssertionError("the worker has pipes")
    try:
        process.stdin.write(json.dumps(question).encode() + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
    except (BrokenPipeError, ConnectionResetError):
        return None
    if not line.endswith(b"\n"):
        return None
    reply: dict[str, Any] = json.loads(line)
    return reply
