"""One file over HTTP on loopback, with ranges; it may hang up half-way once."""

from __future__ import annotations

import asyncio
import re
from types import TracebackType


class FileServer:
    """`async with FileServer(content) as url`; `break_after` cuts the first answer."""

    def __init__(
        self, content: bytes, *, break_after: int | None = None, ranges: bool = True
    ) -> None:
        self.content = content
        self.ranges = ranges
        self.starts: list[int] = []
        self._break_after = break_after

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/model.gguf"

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked = re.search(r"range: bytes=(\d+)-", head, re.IGNORECASE)
        start = int(asked[1]) if asked and self.ranges else 0
        self.starts.append(start)
        if asked and self.ranges and start >= len(self.content):
            writer.write(b"HTTP/1.1 416 Range\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            status = "206 Part" if asked and self.ranges else "200 OK"
            body = self.content[start:]
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n".encode())
            writer.write(b"Connection: close\r\n\r\n")
            writer.write(body[: self._break_after])
            self._break_after = None
        await writer.drain()
        writer.close()
