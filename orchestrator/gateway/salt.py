"""Per-tenant salts of block hashes: one tenant's cache entries mean nothing to another."""

from __future__ import annotations

import hashlib
import hmac

_SALT_BYTES = 16
_MAX_CACHED = 10_000


class TenantSalts:
    """Derives each tenant's salt from the fleet's secret by HMAC-SHA256."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._salts: dict[str, bytes] = {}

    def salt(self, tenant: str) -> bytes:
        """The tenant's salt, the same on every gateway of the fleet."""
        salt = self._salts.get(tenant)
        if salt is None:
            digest = hmac.new(self._key, b"block-hash-salt:" + tenant.encode(), hashlib.sha256)
            salt = digest.digest()[:_SALT_BYTES]
            if len(self._salts) < _MAX_CACHED:
                self._salts[tenant] = salt
        return salt
