"""Files that a person names."""

from __future__ import annotations

import os
from pathlib import Path


def named_file(argument: str) -> Path | None:
    """The regular file that the argument names (`~`: the user's home), made absolute.

    None: it names none. Never raises: what is too long for a path names no file.
    """
    path = os.path.expanduser(argument)
    return Path(path).absolute() if os.path.isfile(path) else None
