"""The ways in which a cloud endpoint fails, and what each means for its request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shoal.errors import Reason, ShoalError


class FaultKind(StrEnum):
    """Names that may be logged and kept: none holds a word of prompt or answer."""

    DOWN = "down"
    TLS = "tls_failed"
    BUSY = "connections_exhausted"
    SLOW_CONNECT = "connect_timeout"
    SLOW_START = "first_byte_timeout"
    STALLED = "chunk_timeout"
    RATE_LIMITED = "rate_limited"
    BAD_REQUEST = "refused_request"
    BAD_KEY = "refused_key"
    NO_MODEL = "model_unknown"
    REDIRECT = "redirected"
    SERVER_ERROR = "server_error"
    CONTENT_TYPE = "wrong_content_type"
    MALFORMED = "malformed_answer"
    OVERSIZED = "oversized_answer"
    BROKE_OFF = "broke_off"
    TOOL_CALL = "called_a_tool"


@dataclass(frozen=True, slots=True)
class _Meaning:
    """The public sentence; `{0}` is the endpoint's name."""

    text: str
    reason: Reason = Reason.UPSTREAM
    # The request itself is at fault: no other endpoint will take it.
    final: bool = False
    # Counts against the endpoint in its circuit breaker.
    blames: bool = True
    # The endpoint may have worked, and bill for it, although nothing came.
    billed: bool = False


_MEANINGS = {
    FaultKind.DOWN: _Meaning("The cloud endpoint {0} is unreachable."),
    FaultKind.TLS: _Meaning("The cloud endpoint {0} could not prove who it is (TLS)."),
    FaultKind.BUSY: _Meaning(
        "All connections to the cloud endpoint {0} are in use. Try again soon.",
        Reason.OVERLOADED,
        blames=False,
    ),
    FaultKind.SLOW_CONNECT: _Meaning("The cloud endpoint {0} did not accept a connection in time."),
    FaultKind.SLOW_START: _Meaning(
        "The cloud endpoint {0} did not begin to answer in time.", billed=True
    ),
    FaultKind.STALLED: _Meaning(
        "The cloud endpoint {0} did not go on with its answer in time.", billed=True
    ),
    FaultKind.RATE_LIMITED: _Meaning(
        "The cloud endpoint {0} is rate limited. Try again later.", Reason.OVERLOADED, blames=False
    ),
    FaultKind.BAD_REQUEST: _Meaning(
        "The cloud endpoint refused: {1}", Reason.INVALID_ARGUMENT, final=True, blames=False
    ),
    FaultKind.BAD_KEY: _Meaning("The cloud endpoint {0} does not accept the configured key."),
    FaultKind.NO_MODEL: _Meaning("The cloud endpoint {0} does not know the configured model."),
    FaultKind.REDIRECT: _Meaning(
        "The cloud endpoint {0} redirects, which is not followed: it would take the prompt and the "
        "key elsewhere."
    ),
    FaultKind.SERVER_ERROR: _Meaning("The cloud endpoint {0} failed: {1}"),
    FaultKind.CONTENT_TYPE: _Meaning(
        "The cloud endpoint {0} sent something other than a stream of events.", billed=True
    ),
    FaultKind.MALFORMED: _Meaning("The cloud endpoint {0} sent a malformed answer.", billed=True),
    FaultKind.OVERSIZED: _Meaning(
        "The cloud endpoint {0} sent more than an answer can be.", billed=True
    ),
    FaultKind.BROKE_OFF: _Meaning(
        "The answer of the cloud endpoint {0} broke off. Try again.", billed=True
    ),
    FaultKind.TOOL_CALL: _Meaning(
        "The cloud endpoint {0} called a tool, and none was offered.", billed=True
    ),
}


class EndpointFault(Exception):
    """One failed try at one endpoint.

    `said` is the endpoint's own text. It goes to the client in `error`, and nowhere
    else, for it may quote the prompt: logs and records get `kind` and `note`.
    """

    def __init__(
        self,
        kind: FaultKind,
        endpoint: str,
        *,
        said: str = "no reason given",
        status: int = 0,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(kind.value)
        meaning = _MEANINGS[kind]
        self.kind = kind
        self.endpoint = endpoint
        self.retry_after_s = retry_after_s
        self.final = meaning.final
        self.blames_endpoint = meaning.blames
        self.may_be_billed = meaning.billed
        self.note = f"{kind.value} ({status})" if status else kind.value
        self.error = ShoalError(
            meaning.reason,
            meaning.text.format(endpoint, said[:500]),
            retry_after_ms=round(1000 * (retry_after_s or 0)),
        )
