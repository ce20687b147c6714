"""A device's way to the shared tier, as the fleet gave it at enrolment: a private file.

The agent writes the file and the engine reads it: secrets are on no command line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit


@dataclass(frozen=True, slots=True)
class SharedAccess:
    """Where the shared tier is, who this device is there, and what seals its blocks."""

    url: str  # redis://host:port or rediss://host:port, without credentials
    user: str
    password: str = field(repr=False)
    fleet_secret: bytes = field(repr=False)

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
        )
    except FileNotFoundError:
        return None
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} cannot be used: {error!r}") from error
