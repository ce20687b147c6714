"""A server that answers for one file as a Hugging Face hub does; the real one is not reachable."""

from __future__ import annotations

import asyncio
import hashlib
from types import TracebackType


class ModelHub:
    """`async with ModelHub(content) as endpoint`: a HEAD names the hash, a GET redirects."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.asked: list[str] = []

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

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
        method, path, _ = head.split(" ", 2)
        self.asked.append(f"{method} {path}")
        digest = hashlib.sha256(self.content).hexdigest()
        body = self.content if path.startswith("/cdn/") and method == "GET" else b""
        status = "200 OK" if path.startswith("/cdn/") else "302 Found"
        lines = [
            f"HTTP/1.1 {status}",
            f"Content-Length: {len(body)}",
            f'X-Linked-Etag: "{digest}"',
            f"X-Linked-Size: {len(self.content)}",
            "Location: /cdn/file",
            "Connection: close",
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
        writer.close()
