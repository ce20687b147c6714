"""The terms under which an engine shares KV blocks: the fleet's file, under its owner's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import structlog

from agent.config import PrefixCacheConfig
from agent.kv.access import load_shared_access
from agent.kv.prefix_cache import PrefixCache
from agent.kv.sharing import SharedTierConfig

log = structlog.get_logger()

_LOOK_EVERY_S = 2.0
_SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True, slots=True)
class SharedTerms:
    """How to reach the shared tier, None: not at all; and what seals its blocks."""

    tier: SharedTierConfig | None = None
    fleet_secret: bytes = field(default=b"", repr=False)


def read_terms(config: PrefixCacheConfig) -> SharedTerms:
    """What the file says now; no tier without one, or (logged) with a damaged one."""
    file = config.shared_access
    if file is None:
        return SharedTerms()
    try:
        access = load_shared_access(file)
    except ValueError as error:
        log.warning("kv_shared_tier_off", error=str(error))
        return SharedTerms()
    if access is None:
        return SharedTerms()
    if urlsplit(access.url).scheme not in _SCHEMES:
        log.warning("kv_shared_tier_off", error="its URL is of no kind that is known here")
        return SharedTerms()
    limit = config.share_bytes_per_s
    tier = SharedTierConfig(
        access.login_url,
        policy=config.share_policy or access.share_policy,
        ca_file=str(file.with_name("ca.crt")) if access.url.startswith("rediss:") else None,
        write_bytes_per_s=access.write_bytes_per_s if limit is None else limit,
    )
    return SharedTerms(tier, access.fleet_secret)


class TermsWatch:
    """Gives a cache another shared tier when the file says something else."""

    def __init__(
        self,
        config: PrefixCacheConfig,
        known: SharedTerms,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`known`: what the cache was opened with. `clock` in seconds."""
        self._config = config
        self._known = known
        self._clock = clock
        self._stamp: tuple[int, int, int] | None = None
        self._looked_s = clock()

    def __call__(self, cache: PrefixCache) -> None:
        """Look, unless that was done lately; one `stat` where nothing has changed."""
        now_s = self._clock()
        if now_s - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = now_s
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        terms = read_terms(self._config)
        if terms == self._known:
            return
        self._known = terms
        cache.use_shared(terms.tier, terms.fleet_secret)
        log.info("kv_shared_tier_replaced", on=terms.tier is not None)

    def _look(self) -> tuple[int, int, int] | None:
        file = self._config.shared_access
        try:
            stat = None if file is None else file.stat()
        except OSError:
            return None
        return None if stat is None else (stat.st_ino, stat.st_mtime_ns, stat.st_size)
