"""Failures in OpenAI's error shape."""

from __future__ import annotations

import json
from typing import Any

from shoal.errors import ShoalError


def error_body(error: ShoalError) -> dict[str, Any]:
    """`{"error": {message, type, param, code}}`, as OpenAI's clients parse it."""
    return {
        "error": {
            "message": error.message,
            "type": error.openai_type,
            "param": error.param or None,
            "code": error.reason.value,
        }
    }


def error_event(error: ShoalError) -> bytes:
    """The failure as the last event of a stream that has begun; no `[DONE]` follows."""
    return b"data: " + json.dumps(error_body(error)).encode() + b"\n\n"


def retry_after_s(error: ShoalError) -> int | None:
    """Whole seconds for `Retry-After`; None: the header is left out."""
    if error.retry_after_ms > 0:
        return max(1, -(-error.retry_after_ms // 1000))
    return 1 if error.http_status in (429, 503) else None
