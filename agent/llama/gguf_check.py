"""A first look at a GGUF file, before llama.cpp trusts its sizes."""

from __future__ import annotations

import struct
from pathlib import Path

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
# Real files have some hundred tensors and some dozen keys.
_MAX_TENSORS = 1_000_000
_MAX_KEYS = 100_000


def check_gguf(path: Path) -> str:
    """What is wrong with the file's header, in words; empty when it looks sound."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(24)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if len(header) < 24:
        return f"is not a GGUF file: {size} bytes long"
    magic, version, num_tensors, num_keys = struct.unpack("<4sIQQ", header)
    if magic != _MAGIC:
        return "is not a GGUF file: wrong magic"
    if version not in _VERSIONS:
        return f"has GGUF version {version}; 2 and 3 are supported"
    # A tensor's entry in the header takes at least 32 bytes, a key's at least 13.
    if num_tensors > min(_MAX_TENSORS, size // 32) or num_keys > min(_MAX_KEYS, size // 13):
        return f"claims {num_tensors} tensors and {num_keys} keys, more than it can hold"
    if num_tensors == 0:
        return "has no tensors"
    return ""
