"""The join token's text and the pin of the fleet's certificate authority in it."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from pathlib import Path

from agent.session.errors import AgentError, ExitCode

_SHAPE = re.compile(r"shoal-join\.([^.\s]+)\.([^.\s]+)\.([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A single-use secret; `text` is what the hub wants to see."""

    text: str = field(repr=False)
    token_id: str
    ca_sha256: str

    @classmethod
    def parse(cls, text: str) -> JoinToken:
        """Read `shoal-join.<id>.<secret>.<ca sha256>`; AgentError when it is not one."""
        match = _SHAPE.fullmatch(text.strip())
        if match is None:
            raise AgentError(
                ExitCode.USAGE,
                "--token is not a join token (shoal-join.ID.SECRET.CA-HASH); make one with "
                "`shoal token create` and pass it whole",
            )
        return cls(text=text.strip(), token_id=match[1], ca_sha256=match[3])

    def check_ca(self, ca_der: bytes) -> None:
        """Refuse a certificate authority other than the one the token was made for."""
        if seen := self._other(ca_der):
            raise AgentError(
                ExitCode.IMPOSTOR_CA,
                f"the gateway presented certificate authority {seen}…, the token was made "
                f"for {self.ca_sha256[:16]}…: either --join points at another fleet or someone "
                "is in between. The token was not sent",
            )

    def check_member(self, own_ca_der: bytes, home: Path) -> None:
        """Refuse a token of another fleet than the one that the device in `home` is a member of."""
        if own := self._other(own_ca_der):
            raise AgentError(
                ExitCode.USAGE,
                f"{home} holds the identity of a member of another fleet (authority {own}…) "
                f"than the token is for ({self.ca_sha256[:16]}…): leave out --token to stay "
                "there, or join the other fleet with another --home",
            )

    def _other(self, ca_der: bytes) -> str:
        """How the hash of this authority begins; empty when it is the token's own."""
        seen = hashlib.sha256(ca_der).hexdigest()
        return "" if hmac.compare_digest(seen, self.ca_sha256) else seen[:16]
