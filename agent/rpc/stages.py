"""Progress for whoever started the agent: one JSON object a line on stdout."""

from __future__ import annotations

import json
import sys


class Stages:
    """Prints stage lines until nobody reads them any more."""

    def __init__(self) -> None:
        self._readable = True

    def say(self, stage: str, **details: str | int | float) -> None:
        """Print `{"stage": stage, ...}`; a closed pipe silences the rest."""
        if not self._readable:
            return
        try:
            sys.stdout.write(json.dumps({"stage": stage, **details}) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            self._readable = False  # the starter is gone; the agent goes on
