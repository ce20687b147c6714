"""Progress for whoever started the agent: one JSON object a line on stdout."""

from __future__ import annotations

import json
import select
import sys


class Stages:
    """Prints stage lines until nobody reads them any more."""

    def __init__(self) -> None:
        self._readable = sys.stdout is not None  # None: started with stdout closed

    def say(self, stage: str, **details: str | int | float) -> None:
        """Print `{"stage": stage, ...}`.

        A line that the reader has no room for is dropped and a closed pipe silences
        the rest: a starter that went away or stopped reading must not stop the agent.
        """
        line = json.dumps({"stage": stage, **details}) + "\n"
        try:
            room = self._readable and select.select([], [sys.stdout], [], 0)[1]
            if room:
                sys.stdout.write(line)
                sys.stdout.flush()
        except BrokenPipeError:
            self._readable = False
