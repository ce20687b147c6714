"""Opens a connection to the shared tier."""

from __future__ import annotations

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from agent.kv.sharing import SharedTierConfig


def shared_client(config: SharedTierConfig, timeout_s: float) -> redis.Redis:
    """A client that tries once, for `timeout_s` at most; it connects with the first command."""
    tls = {"ssl_ca_certs": config.ca_file} if config.url.startswith("rediss://") else {}
    return redis.Redis.from_url(
        config.url,
        protocol=2,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        **tls,
    )
