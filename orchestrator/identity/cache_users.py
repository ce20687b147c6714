"""Devices' credentials for the shared KV blocks, all derived from one key of the fleet.

Derived, not stored: any hub can give a device its password again, and a cache that
lost its users gets them back at the device's next renewal. The key itself never
leaves the orchestrator, so that no device can compute another's password.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from shoal.kv_sharing import SharePolicy, cache_digest


@dataclass(frozen=True, slots=True)
class CacheLogin:
    """What one device is told."""

    url: str
    user: str
    password: str = field(repr=False)
    fleet_secret: bytes = field(repr=False)
    share_policy: SharePolicy = SharePolicy.ALWAYS
    write_bytes_per_s: int = 0

    @property
    def digest(self) -> bytes:
        """Changes when anything that the device is told does."""
        login = (self.user, self.password)
        terms = (self.share_policy.value, self.write_bytes_per_s)
        return cache_digest(self.url, login, self.fleet_secret, *terms)

    @property
    def password_sha256(self) -> str:
        """As Redis keeps it."""
        return hashlib.sha256(self.password.encode()).hexdigest()


def cache_login(key: bytes, url: str, device_id: str) -> CacheLogin:
    """The login of a device, the same each time; `url` is what the device dials."""
    return CacheLogin(
        url=url,
        user=f"device-{device_id}",
        password=_derive(key, f"cache-password:{device_id}").hex(),
        fleet_secret=_derive(key, "kv-seal"),
    )


def _derive(key: bytes, purpose: str) -> bytes:
    return hmac.new(key, purpose.encode(), hashlib.sha256).digest()
