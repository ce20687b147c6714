"""Progress for whoever started the agent: one JSON object a line on stdout."""

from __future__ import annotations

import json
import select
import sys

from shoal.v1 import engine_pb2


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

    def say_model(self, report: engine_pb2.ModelReport) -> None:
        """A model serves, or was given up; its other states are no stages."""
        if report.state == engine_pb2.MODEL_STATE_READY:
            self.say(
                "engine_ready",
                model=report.name,
                prefill_tokens_per_s=round(report.prefill_tokens_per_s, 1),
                decode_tokens_per_s=round(report.decode_tokens_per_s, 1),
            )
        elif report.state == engine_pb2.MODEL_STATE_FAILED:
            self.say("engine_failed", model=report.name, reason=report.failure)
