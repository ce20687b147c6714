"""Who calls: API keys, remembered for a few seconds."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from shoal.errors import Reason, ShoalError

# A key that another gateway revoked works this much longer at most.
CACHE_S = 5.0
_MAX_CACHED_KEYS = 10_000
_MAX_KEY_CHARS = 512


class Caller(Protocol):
    """The owner of a key (`orchestrator.identity`'s Principal)."""

    @property
    def tenant(self) -> str:
        """Whose prompts and caches these are."""
        ...

    @property
    def role(self) -> str:
        """`admin` or `user`."""
        ...

    @property
    def key_id(self) -> str:
        """The key's public name."""
        ...


class Keys(Protocol):
    """Where keys are kept."""

    async def authenticate(self, plaintext: str) -> Caller:
        """The key's owner; raises UNAUTHENTICATED."""
        ...


class Authenticator:
    """Checks bearer keys; asks the store at most once per key and `CACHE_S`."""

    def __init__(self, keys: Keys, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._monotonic = monotonic
        self._cache: dict[bytes, tuple[float, Caller]] = {}

    async def caller(self, headers: Mapping[str, str]) -> Caller:
        """The caller by the `Authorization` header; raises UNAUTHENTICATED."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key or len(key) > _MAX_KEY_CHARS:
            raise ShoalError(
                Reason.UNAUTHENTICATED,
                "An API key is required: send 'Authorization: Bearer KEY'. "
                "Make one with 'shoal keys create'.",
            )
        digest = hashlib.sha256(key.encode("utf-8", "replace")).digest()
        now_s = self._monotonic()
        cached = self._cache.get(digest)
        if cached is not None and now_s < cached[0]:
            return cached[1]
        self._cache.pop(digest, None)
        caller = await self._keys.authenticate(key)
        if len(self._cache) >= _MAX_CACHED_KEYS:
            self._cache.clear()
        self._cache[digest] = (now_s + CACHE_S, caller)
        return caller

    def forget(self) -> None:
        """A key was revoked: ask the store of each again."""
        self._cache.clear()

    async def admin(self, headers: Mapping[str, str]) -> Caller:
        """The caller, who must hold an admin key; raises PERMISSION_DENIED."""
        caller = await self.caller(headers)
        if caller.role != "admin":
            raise ShoalError(
                Reason.PERMISSION_DENIED, "This call needs an API key with the role 'admin'."
            )
        return caller
