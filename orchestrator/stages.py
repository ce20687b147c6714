"""The stage lines on stdout, by which a starter follows this process."""

from __future__ import annotations

import json
import os
import sys
from typing import Any


class Stages:
    """Keeps the process's stdout for stage lines; make it once, before anything prints.

    Effect: what others print to stdout from then on, Ray above all, goes to stderr.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def say(self, stage: str, **details: Any) -> None:
        """One JSON object a line."""
        print(json.dumps({"stage": stage, **details}), file=self._stream, flush=True)
