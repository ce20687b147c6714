"""An OpenAI-compatible endpoint that keeps every byte it gets and misbehaves on order."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

STREAM_HEADERS = {"content-type": "text/event-stream"}


def chunk(**parts: Any) -> str:
    return "data: " + json.dumps({"id": "u", "object": "chat.completion.chunk", **parts}) + "\n\n"


def text_chunk(text: str, finish: str | None = None) -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return chunk(choices=[choice])


def usage_chunk(prompt_tokens: Any, completion_tokens: Any) -> str:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return chunk(choices=[], usage=usage)


DONE = "data: [DONE]\n\n"
GOOD = [
    ": keep-alive\n\n",
    chunk(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}]),
    text_chunk("From"),
    text_chunk(" above", "stop"),
    usage_chunk(9, 2),
    DONE,
]


class Exchange:
    """One request, and the connection to answer it on."""

    def __init__(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.body = body
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Raw bytes."""
        self._writer.write(data)
        await self._writer.drain()

    async def head(self, status: int, headers: dict[str, str]) -> None:
        """Status line and headers."""
        lines = [f"HTTP/1.1 {status} Whatever", *(f"{k}: {v}" for k, v in headers.items())]
        await self.send(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def part(self, text: str) -> None:
        """One part of a chunked body."""
        data = text.encode()
        await self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")


# Answers one request; whether the connection may be used again.
Script = Callable[[Exchange], Awaitable[bool]]


def refuse(status: int, message: str = "upstream says no", **headers: str) -> Script:
    async def script(exchange: Exchange) -> bool:
        body = json.dumps({"error": {"message": message}}).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await exchange.head(status, {"content-length": str(len(body)), **named})
        await exchange.send(body)
        return True

    return script


def stream(
    *parts: str, hangs: bool = False, cut: bool = False, pause_s: float = 0.0, **headers: str
) -> Script:
    async def script(exchange: Exchange) -> bool:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await exchange.head(200, STREAM_HEADERS | {"transfer-encoding": "chunked"} | named)
        for part in parts:
            await exchange.part(part)
            await asyncio.sleep(pause_s)
        if hangs:
            await asyncio.Event().wait()
        if not cut:
            await exchange.send(b"0\r\n\r\n")
        return not cut

    return script


async def silent(exchange: Exchange) -> bool:
    """Take the request and never answer."""
    await asyncio.Event().wait()
    return False


async def hang_up(exchange: Exchange) -> bool:
    """Take the request and close the connection."""
    return False


def endless(part: str, pause_s: float) -> Script:
    """A stream that never ends, and always sends something."""

    async def script(exchange: Exchange) -> bool:
        await exchange.head(200, STREAM_HEADERS | {"transfer-encoding": "chunked"})
        while True:
            await exchange.part(part)
            await asyncio.sleep(pause_s)

    return script


def one_after_another(*scripts: Script) -> Script:
    """A different answer each time; the last one from then on."""
    rest = list(scripts)

    async def script(exchange: Exchange) -> bool:
        return await (rest.pop(0) if len(rest) > 1 else rest[0])(exchange)

    return script


class Upstream:
    """What the endpoint does next, and what it saw."""

    def __init__(self) -> None:
        self.port = 0
        self.script: Script = stream(*GOOD)
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.received = bytearray()
        self.num_connections = 0
        self.gone = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.gone.set()
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        self.received += head
        lines = head.decode().split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.received += body
        self.bodies.append(json.loads(body or b"{}"))
        self.keys.append(headers.get("authorization", ""))
        answering = asyncio.ensure_future(self.script(Exchange(self.bodies[-1], writer)))
        # A client that goes away ends the answer, as it does with any real server.
        leaving = asyncio.ensure_future(reader.read(1))
        done, _ = await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if answering not in done:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            return False
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        return bool(await answering)

    async def end(self) -> None:
        """End all connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def running_upstream(tls: ssl.SSLContext | None = None) -> AsyncIterator[Upstream]:
    upstream = Upstream()
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0, ssl=tls)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()
        await upstream.end()
