"""The server process of a companion: start, watch, end."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import sys
from collections import deque
from pathlib import Path
from urllib.parse import urlsplit

from agent.companion.config import server_environment
from agent.companion.settings import CompanionSettings

_KEEPER = Path(__file__).with_name("keeper.py")
_NUM_LAST_LINES = 20
_LONGEST_LINE_BYTES = 2000
# Longer than the keeper takes to end a server that does not want to.
_STOP_WITHIN_S = 4.5
# An earlier server, whose starter was killed: its keeper takes as long to end it.
_FREE_WITHIN_S = 6.0
_LOOK_EVERY_S = 0.1


async def until_port_is_free(url: str) -> bool:
    """Wait for an earlier server that is being ended; False when the port stays taken.

    Else the new one could not have the port, and the old one would answer in its place.
    """
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + _FREE_WITHIN_S
    while _is_taken(url):
        if loop.time() >= ends_s:
            return False
        await asyncio.sleep(_LOOK_EVERY_S)
    return True


def _is_taken(url: str) -> bool:
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port
    if port is None:
        return False
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:  # of any other kind: the server itself will say it better
            return error.errno == errno.EADDRINUSE
    return False


class CompanionServer:
    """A running server below its keeper.

    What it writes is read and, once it serves, dropped: servers log prompts. What it wrote
    before, when there was no prompt yet, tells why it did not start.
    """

    def __init__(self, keeper: asyncio.subprocess.Process) -> None:
        self._keeper = keeper
        self._last_lines: deque[str] = deque(maxlen=_NUM_LAST_LINES)
        self._serves = False
        self._drain = asyncio.create_task(self._read_output())

    @classmethod
    async def start(cls, settings: CompanionSettings) -> CompanionServer:
        """Start the command; OSError when not even its keeper can be started."""
        keeper = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_KEEPER), *settings.command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=settings.directory,
            env=server_environment(settings.environment),
            limit=_LONGEST_LINE_BYTES,
        )
        return cls(keeper)

    def note_serving(self) -> None:
        """Requests may come from now on: keep no more of the server's words."""
        self._serves = True
        self._last_lines.clear()

    async def wait(self) -> str:
        """Wait for the server's end; how it ended, with its last words if it never served."""
        code = await self._keeper.wait()
        await asyncio.wait([self._drain], timeout=1.0)
        how = f"killed by {_signal_name(code - 128)}" if code > 128 else f"exit code {code}"
        return f"{how}: {self._last_lines[-1]}" if self._last_lines else how

    async def stop(self) -> None:
        """End the server and all that it started."""
        if self._keeper.returncode is None:
            self._keeper.terminate()
        try:
            async with asyncio.timeout(_STOP_WITHIN_S):
                await self._keeper.wait()
        except TimeoutError:
            self._keeper.kill()
        self._drain.cancel()

    async def _read_output(self) -> None:
        stream = self._keeper.stdout
        if stream is None:
            return
        while chunk := await stream.read(_LONGEST_LINE_BYTES):
            if not self._serves:
                lines = [line.strip() for line in chunk.decode(errors="replace").splitlines()]
                self._last_lines.extend(line for line in lines if line)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
