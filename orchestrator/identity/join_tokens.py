"""Join tokens: the text a device gets, and what a stored token says to one."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.errors import Reason, ShoalError

_SHAPE = re.compile(r"shoal-join\.([A-Za-z0-9_-]{8,64})\.([A-Za-z0-9_-]{32,128})\.([0-9a-f]{64})")
_REMEDY = "make one with `shoal token create`"


@dataclass(frozen=True, slots=True)
class JoinToken:
    """`shoal-join.<token id>.<secret>.<SHA-256 of the CA's DER>`; single-use."""

    token_id: str
    secret: str = field(repr=False)
    ca_sha256: str

    @classmethod
    def new(cls, ca_sha256: str) -> JoinToken:
        """A token of 256 random bits for the fleet of this CA."""
        return cls(secrets.token_hex(8), secrets.token_urlsafe(32), ca_sha256)

    @classmethod
    def parse(cls, text: str) -> JoinToken:
        """Read a token's text; raises UNAUTHENTICATED when it is empty or malformed."""
        text = text.strip()
        if not text:
            raise _denied(f"the join token is empty; {_REMEDY}")
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise _denied(f"the join token is malformed; pass it whole, or {_REMEDY}")
        return cls(match[1], match[2], match[3])

    @property
    def text(self) -> str:
        """The whole token; secret."""
        return f"shoal-join.{self.token_id}.{self.secret}.{self.ca_sha256}"

    @property
    def secret_sha256(self) -> str:
        """What is stored instead of the secret."""
        return hashlib.sha256(self.secret.encode()).hexdigest()

    def check(self, stored: Mapping[str, str], ca_sha256: str, now_unix_ms: int) -> None:
        """Raise UNAUTHENTICATED unless this token may enrol a device now.

        `stored` is the token's record, empty when there is none. Whether the token
        expired or was used is told only to those who hold its secret, and a token of
        unknown id reads the same as one of a wrong secret.
        """
        known = stored.get("secret_sha256", "")
        same_secret = hmac.compare_digest(known.encode(), self.secret_sha256.encode())
        same_fleet = hmac.compare_digest(ca_sha256.encode(), self.ca_sha256.encode())
        if not (known and same_secret and same_fleet):
            raise unknown_token()
        if stored.get("used_by"):
            raise used_token()
        if now_unix_ms >= int(stored["expires_unix_ms"]):
            raise expired_token()


def unknown_token() -> ShoalError:
    """This fleet never made the token."""
    return _denied(f"the join token is not one of this fleet's; {_REMEDY} on this fleet")


def used_token() -> ShoalError:
    """The token enrolled a device already."""
    return _denied(f"the join token was used before, each enrols one device; {_REMEDY}")


def expired_token() -> ShoalError:
    """The token's time is over."""
    return _denied(f"the join token has expired; {_REMEDY}")


def _denied(message: str) -> ShoalError:
    return ShoalError(Reason.UNAUTHENTICATED, message, param="token")
