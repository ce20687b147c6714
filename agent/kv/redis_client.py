"""Opens a connection to the shared tier."""

from __future__ import annotations

import redis
from redis.backoff import NoBackoff
from redis.connection import PythonRespSerializer
from redis.retry import Retry

from agent.kv.sharing import SharedTierConfig

# Values above so many bytes are sent as they lie, without a copy: redis-py's own figure.
_COPIED_BYTES = 6000


def shared_client(config: SharedTierConfig, timeout_s: float) -> redis.Redis:
    """A client that tries once, for `timeout_s` at most; it connects with the first command."""
    tls = {"ssl_ca_certs": config.ca_file} if config.url.startswith("rediss://") else {}
    # hiredis, where it is installed, copies a block of megabytes for many times as long as
    # sending it takes, and holds the interpreter's lock meanwhile.
    packer = PythonRespSerializer(_COPIED_BYTES, _encoded)
    return redis.Redis.from_url(
        config.url,
        protocol=2,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        command_packer=packer,
        **tls,
    )


def _encoded(value: bytes | str | int | float) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
