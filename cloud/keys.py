"""The fleet's key towards what it hosts: nodes know its hash only.

Imports nothing of ours: vLLM's nodes have other versions of what we need.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

REFUSAL = "Hosted models are served to the fleet's gateway only."
_MAX_KEY_CHARS = 512


def key_hash(key: str) -> str:
    """Hex SHA-256 of the key, by which nodes know it."""
    return hashlib.sha256(key.strip()[:_MAX_KEY_CHARS].encode("utf-8", "replace")).hexdigest()


def bears_key(headers: Mapping[str, str], key_sha256: str) -> bool:
    """Whether `authorization` bears the key of this hex hash."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(key_hash(key), key_sha256)
