"""An answer of the gateway as it comes in, event by event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Reply:
    """One answer as it comes in: its text, the response's headers, usage and extension.

    The headers say who was asked first; the extension, which comes last, whose answer it is.
    """

    text: str = ""
    finish_reason: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    extension: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """Name of the device that answered; empty: none did."""
        return str(self.extension.get("device", self.headers.get("x-shoal-device", "")))

    @property
    def tier(self) -> str:
        """`edge` or `cloud`."""
        return str(self.extension.get("tier") or self.headers.get("x-shoal-tier", ""))

    @property
    def reason(self) -> str:
        """Why it was answered there, in a sentence, and what its cascade decided."""
        why = self.extension.get("reason", self.headers.get("x-shoal-reason", ""))
        cascade = self.extension.get("cascade") or {}
        told = f"cascade: {cascade['decision']}, {cascade['reason']}" if cascade else ""
        return "; ".join(each for each in (why, told) if each)

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "request_id": self.headers.get("x-shoal-request-id", ""),
            "text": self.text,
            "finish_reason": self.finish_reason,
            "device": self.device,
            "tier": self.tier,
            "usage": self.usage,
            "shoal": self.extension,
        }

    def take(self, event: dict[str, Any]) -> str:
        """Put in an event of the stream; the text that it brought."""
        self.headers = event.get("headers", self.headers)
        self.usage = event.get("usage") or self.usage
        if restart_reason(event) is None:
            self.extension = event.get("shoal") or self.extension
        else:
            self.text = ""
        text = ""
        for choice in event.get("choices", []):
            text += choice["delta"].get("content") or ""
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.text += text
        return text


def restart_reason(event: dict[str, Any]) -> str | None:
    """Why the event takes back what was said so far (docs/cascade.md); None: it does not."""
    restart = (event.get("shoal") or {}).get("restart")
    return None if restart is None else str(restart.get("reason", ""))
