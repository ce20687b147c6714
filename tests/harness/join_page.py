"""The gateway's public join page, served on loopback."""

from __future__ import annotations

import asyncio
import json
from typing import Any


class JoinPage:
    """`GET` anything answers with `page` as JSON."""

    def __init__(self, page: dict[str, Any]) -> None:
        self.page = page

    async def start(self, host: str = "127.0.0.1") -> str:
        """The URL to pass as --join."""
        self._server = await asyncio.start_server(self._answer, host, 0)
        return f"http://{host}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(self.page).encode()
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n".encode())
        writer.write(b"Connection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()
