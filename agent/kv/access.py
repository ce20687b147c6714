"""A device's way to the shared tier, as the fleet gave it at enrolment: a private file.

The agent writes the file and the engine reads it: secrets are on no command line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from shoal.kv_sharing import SharePolicy, cache_digest


@dataclass(frozen=True, slots=True)
class SharedAccess:
    """Where the shared tier is, who this device is there, and what seals its blocks."""

    url: str  # redis://host:port or rediss://host:port, without credentials
    user: str
    password: str = field(repr=False)
    fleet_secret: bytes = field(repr=False)
    # The fleet's, where this device's owner set none; bytes/s, 0: no limit.
    share_policy: SharePolicy = SharePolicy.ALWAYS
    write_bytes_per_s: int = 0

    @property
    def digest(self) -> bytes:
        """As the hub sends it with every welcome."""
        login = (self.user, self.password)
        terms = (self.share_policy.value, self.write_bytes_per_s)
        return cache_digest(self.url, login, self.fleet_secret, *terms)

    @property
    def login_url(self) -> str:
        """The URL with this device's credentials in it."""
        parts = urlsplit(self.url)
        login = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        return urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc}"))

    def to_json(self) -> bytes:
        """The file's content."""
        fields = {
            "url": self.url,
            "user": self.user,
            "password": self.password,
            "fleet_secret": self.fleet_secret.hex(),
            "share_policy": self.share_policy.value,
            "write_bytes_per_s": self.write_bytes_per_s,
        }
        return json.dumps(fields, indent=1).encode()


def load_shared_access(path: Path) -> SharedAccess | None:
    """What the file says; None when there is none. Raises ValueError for a damaged one."""
    try:
        fields = json.loads(path.read_bytes())
        return SharedAccess(
            url=str(fields["url"]),
            user=str(fields["user"]),
            password=str(fields["password"]),
            fleet_secret=bytes.fromhex(fields["fleet_secret"]),
            share_policy=SharePolicy(fields.get("share_policy", "always")),
            write_bytes_per_s=int(fields.get("write_bytes_per_s", 0)),
        )
    except FileNotFoundError:
        return None
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} cannot be used: {error!r}") from error
