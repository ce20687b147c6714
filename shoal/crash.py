"""What may be told of an unexpected exception: its kind and place, never its words.

An exception's message may quote what was being worked on, a prompt among it.
"""

from __future__ import annotations

import traceback
from pathlib import Path

_MAX_FRAMES = 12


def place_of(error: BaseException) -> str:
    """`KeyError at app.py:12 main < text.py:80 run`, with causes after ` from `."""
    texts: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        frames = traceback.extract_tb(current.__traceback__)[-_MAX_FRAMES:]
        places = " < ".join(
            f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames[::-1]
        )
        texts.append(f"{type(current).__name__} at {places}")
        current = current.__cause__ or current.__context__
    return " from ".join(texts)
