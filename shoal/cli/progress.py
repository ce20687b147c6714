"""How far a starting fleet is: the supervisor writes it, `shoal up` follows it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from shoal.home import Home

POLL_S = 0.05


class ProgressWriter:
    """Appends one JSON object a line to `run/progress.jsonl`; starts it anew."""

    def __init__(self, home: Home) -> None:
        self._path = home.run_dir / "progress.jsonl"
        self._path.write_text("")

    def say(self, stage: str, source: str = "fleet", **values: Any) -> None:
        """Note that `source` reached `stage`."""
        line = {"stage": stage, "source": source, "unix_ms": time.time_ns() // 1_000_000} | values
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def follow_progress(home: Home) -> Iterator[dict[str, Any] | None]:
    """Each stage as it comes; None after each look that found nothing new.

    Sleeps POLL_S between looks. Ends never: the caller knows the last stage.
    """
    path, read = home.run_dir / "progress.jsonl", 0
    while True:
        text = path.read_bytes() if path.exists() else b""
        complete = text[: text.rfind(b"\n") + 1]
        for line in complete[read:].splitlines():
            yield json.loads(line)
        if len(complete) == read:
            time.sleep(POLL_S)
            yield None
        read = len(complete)
