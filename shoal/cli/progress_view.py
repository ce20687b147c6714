"""What a person sees while a fleet starts: one line a finished stage, and a spinner."""

from __future__ import annotations

import time
from typing import Any

from rich.markup import escape
from rich.status import Status

from shoal.cli.output import notes

# Words for the stages that are worth a line; others only move the spinner's text.
_WORDS = {
    "redis_ready": "Redis",
    "orchestrator_ray_ready": "Ray",
    "orchestrator_hub_ready": "hub",
    "orchestrator_gateway_ready": "gateway",
    "agent_enrolled": "enrolled",
    "agent_engine_ready": "engine loaded and measured",
    "agent_connected": "connected",
    "device_ready": "ready to serve",
}


class ProgressView:
    """Prints stages to stderr; `quiet` prints nothing."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._began = time.monotonic()
        self._spinner: Status | None = None

    def note(self, text: str) -> None:
        """One plain remark."""
        if not self._quiet:
            notes.print(f"[dim]{escape(text)}[/dim]")

    def show(self, stage: dict[str, Any]) -> None:
        """Print `stage` as the supervisor wrote it, or move the spinner to it."""
        if self._quiet:
            return
        words = _WORDS.get(stage["stage"])
        if words:
            who = f"{stage['source']}: " if stage["source"].startswith("local-") else ""
            models = f" ({', '.join(stage['models'])})" if stage.get("models") else ""
            elapsed_s = time.monotonic() - self._began
            notes.print(f"[green]ok[/green] {elapsed_s:5.1f} s  {escape(who + words + models)}")
        if notes.is_terminal and self._spinner is None:
            self._spinner = notes.status("starting")
            self._spinner.start()
        if self._spinner:
            self._spinner.update(escape(stage["stage"].replace("_", " ")))

    def close(self) -> None:
        """Stop the spinner."""
        if self._spinner:
            self._spinner.stop()
            self._spinner = None
