"""A first look at a GGUF file, before llama.cpp trusts its sizes."""

from __future__ import annotations

from pathlib import Path

from shoal.gguf import GgufError
from shoal.gguf_facts import scan


def check_gguf(path: Path) -> str:
    """What is wrong with the file's header, in words; empty when it looks sound."""
    try:
        scan(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except GgufError as error:
        return str(error)
    return ""
