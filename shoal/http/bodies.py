"""Bodies, headers and failures of HTTP, in OpenAI's shape."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive

from shoal.errors import ShoalError
from shoal.openai.body import MAX_BODY_BYTES, BodyTooLargeError, BodyTooSlowError
from shoal.openai.error import error_body, retry_after_s

_MAX_HEADER_CHARS = 300
_MAX_DRAINED_BYTES = 8 * MAX_BODY_BYTES
# The largest body at about 1 Mbit/s; who sends more slowly holds a connection for nothing.
BODY_LIMIT_S = 60.0


def json_response(
    body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON answer; ASCII escapes, so that no text can break the encoding."""
    return Response(
        json.dumps(body, separators=(",", ":")),
        status_code=status,
        headers=headers,
        media_type="application/json",
    )


def error_response(error: ShoalError, headers: Mapping[str, str] | None = None) -> Response:
    """The failure with its HTTP status and `Retry-After`."""
    merged = dict(headers or {})
    wait_s = retry_after_s(error)
    if wait_s is not None:
        merged["retry-after"] = str(wait_s)
    if error.http_status == 408:
        merged["connection"] = "close"  # the rest of the body is not waited for
    if error.http_status == 401:
        merged["www-authenticate"] = "Bearer"
    return json_response(error_body(error), error.http_status, merged)


async def read_body(request: Request, limit_s: float = BODY_LIMIT_S) -> bytes:
    """The whole body; raises BodyTooLargeError for one over `MAX_BODY_BYTES`, BodyTooSlowError.

    A body somewhat over it is read to its end and thrown away: a client that is still
    sending when the answer comes sees a broken connection instead of the answer.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > _MAX_DRAINED_BYTES:
        raise BodyTooLargeError
    try:
        async with asyncio.timeout(limit_s) as limit:
            return await _read(request)
    except TimeoutError:
        if not limit.expired():
            raise  # somebody else's limit
        raise BodyTooSlowError(limit_s) from None


async def _read(request: Request) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    try:
        async for part in request.stream():
            size_bytes += len(part)
            if size_bytes > _MAX_DRAINED_BYTES:
                break
            if size_bytes <= MAX_BODY_BYTES:
                parts.append(part)
            else:
                parts.clear()
    except ClientDisconnect:
        raise asyncio.CancelledError from None
    if size_bytes > MAX_BODY_BYTES:
        raise BodyTooLargeError
    return b"".join(parts)


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has gone; the body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def header_text(text: str) -> str:
    """`text` as one line that any HTTP client can read."""
    flat = " ".join(text.split())[:_MAX_HEADER_CHARS]
    return flat.encode("ascii", "replace").decode("ascii")
