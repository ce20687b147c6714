"""Failures in OpenAI's error shape."""

from __future__ import annotations

import json
from typing import Any

from shoal.errors import Foreseen, ShoalError


def error_body(error: ShoalError) -> dict[str, Any]:
    """`{"error": {message, type, param, code}}`, as OpenAI's clients parse it.

    A refusal that rests on a prediction also has a `shoal` object with the figures.
    """
    body: dict[str, Any] = {
        "message": error.message,
        "type": error.openai_type,
        "param": error.param or None,
        "code": error.reason.value,
    }
    if error.foreseen is not None:
        body["shoal"] = {
            "predicted": _rounded(error.foreseen),
            "retry_after_ms": error.retry_after_ms or None,
        }
    return {"error": body}


def _rounded(foreseen: Foreseen) -> dict[str, float | None]:
    tpot_ms = foreseen.tpot_ms
    return {
        "ttft_ms": round(foreseen.ttft_ms, 1),
        "tpot_ms": None if tpot_ms is None else round(tpot_ms, 2),
    }


def error_event(error: ShoalError) -> bytes:
    """The failure as the last event of a stream that has begun; no `[DONE]` follows."""
    return b"data: " + json.dumps(error_body(error)).encode() + b"\n\n"


def retry_after_s(error: ShoalError) -> int | None:
    """Whole seconds for `Retry-After`; None: the header is left out."""
    if error.retry_after_ms > 0:
        return max(1, -(-error.retry_after_ms // 1000))
    return 1 if error.http_status in (429, 503) else None
