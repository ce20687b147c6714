"""The local API's HTTP server, in the agent's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import structlog
import uvicorn

from agent.local_api.routes import local_application
from agent.local_api.service import LocalText
from agent.rpc.identity import write_private

log = structlog.get_logger()

# Where it listens, for the command line; absent while it does not.
ADDRESS_FILE = "local-api.json"
# Connections, idle ones included.
_MAX_CONNECTIONS = 256
_STOP_WITHIN_S = 2


class _Server(uvicorn.Server):
    """Leaves signals to the agent."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class LocalServer:
    """Listens from `start` to `stop`."""

    def __init__(self, service: LocalText, home: Path) -> None:
        self._address_file = home / ADDRESS_FILE
        config = uvicorn.Config(
            local_application(service),
            http="h11",
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_graceful_shutdown=_STOP_WITHIN_S,
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    def start(self, host: str, port: int) -> str:
        """Bind, serve from now on, and return the base URL; OSError when it cannot be bound."""
        bound = _bind(host, port)
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{bound.getsockname()[1]}/v1"
        self._task = asyncio.create_task(self._server.serve([bound]), name="local-api")
        write_private(self._address_file, json.dumps({"url": url}).encode())
        return url

    async def stop(self) -> None:
        """Let what runs end shortly, then close every connection."""
        self._address_file.unlink(missing_ok=True)
        if self._task is not None:
            self._server.should_exit = True
            await asyncio.gather(self._task, return_exceptions=True)


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        # A port that the agent before us has just left can be had at once.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
