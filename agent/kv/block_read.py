"""Reads one value of the shared tier straight into memory that is used again.

redis-py gives a value as fresh bytes, after a copy in its parser: for blocks of
megabytes that takes as long as the transfer. So GET is sent by its connection, which
knows TLS, login and time limits, and the answer is read from that connection's socket.
"""

from __future__ import annotations

import threading
from typing import Any

import redis

# Longest first line of an answer: a length, or an error's text.
_MAX_LINE_BYTES = 512


class BlockReads:
    """Values of at most `max_bytes`; any number of threads, a buffer for each."""

    def __init__(self, client: redis.Redis, max_bytes: int) -> None:
        self._pool = client.connection_pool
        self._max_bytes = max_bytes
        self._local = threading.local()

    def get(self, key: str) -> memoryview | None:
        """The value, valid until this thread's next call; None when there is none.

        A longer value than `max_bytes` comes as an empty one. Raises redis.RedisError
        or OSError, and the connection is closed then.
        """
        connection: Any = self._pool.get_connection()
        whole = False
        try:
            connection.send_command("GET", key)
            value, whole = self._read(connection._sock)
            return value
        finally:
            if not whole:
                connection.disconnect()
            self._pool.release(connection)

    def _read(self, sock: Any) -> tuple[memoryview | None, bool]:
        """(value, whether the answer was read to its end)."""
        line = _read_line(sock)
        if line[:1] == b"-":
            raise redis.ResponseError(line[1:].decode("utf-8", "replace"))
        if line[:1] != b"$":
            raise redis.InvalidResponse("not the answer to GET")
        num_bytes = int(line[1:])
        if num_bytes < 0:
            return None, True
        buffer = self._buffer()
        if num_bytes > self._max_bytes:
            return buffer[:0], False
        wanted = buffer[: num_bytes + 2]
        num_read = 0
        while num_read < len(wanted):
            count = sock.recv_into(wanted[num_read:])
            if not count:
                raise redis.ConnectionError("closed within a value")
            num_read += count
        return buffer[:num_bytes], True

    def _buffer(self) -> memoryview:
        found: memoryview | None = getattr(self._local, "buffer", None)
        if found is None:
            found = self._local.buffer = memoryview(bytearray(self._max_bytes + 2))
        return found


def _read_line(sock: Any) -> bytes:
    """Up to the line's end and not a byte more: what follows goes elsewhere."""
    line = bytearray()
    while not line.endswith(b"\r\n"):
        byte = sock.recv(1)
        if not byte or len(line) > _MAX_LINE_BYTES:
            raise redis.ConnectionError("no whole answer")
        line += byte
    return bytes(line[:-2])
