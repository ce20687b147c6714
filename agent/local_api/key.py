"""The local API's key: made once, kept beside the identity, readable by its owner alone."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from agent.rpc.identity import write_private
from agent.session.errors import AgentError, ExitCode

KEY_FILE = "local-api.key"
_PREFIX = "sk-shoal-local-"
_SALT_BYTES = 16


class LocalKey:
    """Compares keys, and derives the local clients' salt of block hashes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._digest = hashlib.sha256(text.encode()).digest()

    @classmethod
    def load_or_make(cls, home: Path) -> LocalKey:
        """The key in `home`; AgentError when its file can be read by others or not by us."""
        path = home / KEY_FILE
        try:
            if not path.exists():
                write_private(path, (_PREFIX + secrets.token_urlsafe(24) + "\n").encode())
            if path.stat().st_mode & 0o077:
                raise AgentError(
                    ExitCode.USAGE,
                    f"{path} can be read by other users; delete it, and a new key is made",
                )
            text = path.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise AgentError(ExitCode.USAGE, f"the local API's key {path}: {error}") from error
        if not text:
            raise AgentError(ExitCode.USAGE, f"{path} is empty; delete it and a new key is made")
        return cls(text)

    def fits(self, given: str) -> bool:
        """Whether `given` is the key; takes the same time wherever they differ."""
        digest = hashlib.sha256(given.encode("utf-8", "replace")).digest()
        return hmac.compare_digest(digest, self._digest)

    def salt(self) -> bytes:
        """Local prompts share cached blocks with one another and with no tenant of the fleet."""
        digest = hmac.new(self._text.encode(), b"local-block-hash-salt", hashlib.sha256).digest()
        return digest[:_SALT_BYTES]
