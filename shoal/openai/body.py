"""From the bytes of an HTTP body to a JSON object, whatever the bytes are."""

from __future__ import annotations

import json
from typing import Any

from shoal.errors import Reason, ShoalError, invalid

# Long prompts reach a few MiB of text; a larger body is refused before it is read.
MAX_BODY_BYTES = 8 * 1024 * 1024


class BodyTooLargeError(ShoalError):
    """The body is over `MAX_BODY_BYTES`; answered with 413."""

    def __init__(self) -> None:
        super().__init__(
            Reason.INVALID_ARGUMENT,
            f"The request body is larger than {MAX_BODY_BYTES // 2**20} MiB. Shorten the prompt.",
        )

    @property
    def http_status(self) -> int:
        """413, which no failure of an engine or a device has."""
        return 413


class BodyTooSlowError(ShoalError):
    """The body did not arrive in time; answered with 408."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            Reason.INVALID_ARGUMENT,
            f"The request body did not arrive within {limit_s:.0f} s. Send it again.",
        )

    @property
    def http_status(self) -> int:
        """408, which no failure of an engine or a device has."""
        return 408


def parse_body(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`.

    NaN and infinities pass here, so that the field that holds one is named when
    it is read. Raises `ShoalError` (INVALID_ARGUMENT) for anything else.
    """
    if len(body) > MAX_BODY_BYTES:
        raise BodyTooLargeError
    if not body.strip():
        raise invalid("", "The request body is empty. Send a JSON object.")
    try:
        # With or without a byte order mark, which some editors and shells put before a file.
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise invalid("", f"The request body is not valid UTF-8 (at byte {error.start}).") from None
    try:
        value = json.loads(text)
    except RecursionError:
        raise invalid("", "The request body is nested too deeply.") from None
    except ValueError as error:
        # Covers JSONDecodeError and integers of more than 4,300 digits.
        detail = error.msg if isinstance(error, json.JSONDecodeError) else "a number is too long"
        position = f" (at character {error.pos})" if isinstance(error, json.JSONDecodeError) else ""
        raise invalid("", f"The request body is not valid JSON: {detail}{position}.") from None
    if not isinstance(value, dict):
        raise invalid("", "The request body must be a JSON object.")
    return value
