"""Why a request fails, once for every hop.

A `Reason` maps to the wire's `FailureReason`, to a gRPC status and to the HTTP
status and error type that OpenAI clients expect. Cores raise `ShoalError`; the
edges translate it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import grpc

from shoal.v1 import inference_pb2 as pb


class Reason(StrEnum):
    """Kinds of failure; the value is the OpenAI error `code`."""

    INVALID_ARGUMENT = "invalid_argument"
    CONTEXT_OVERFLOW = "context_length_exceeded"
    MODEL_NOT_FOUND = "model_not_found"
    OVERLOADED = "overloaded"
    NO_DEVICE = "no_device"
    DEVICE_LOST = "device_lost"
    ENGINE_CRASHED = "engine_crashed"
    CANCELLED = "cancelled"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    UNAUTHENTICATED = "invalid_api_key"
    PERMISSION_DENIED = "permission_denied"
    UPSTREAM = "upstream_error"
    DRAINING = "draining"
    SLO_UNREACHABLE = "slo_unreachable"
    INTERNAL = "internal_error"
    BUDGET_EXCEEDED = "budget_exceeded"
    RATE_LIMITED = "rate_limit_exceeded"


# reason -> (wire value, gRPC status, HTTP status, OpenAI error type)
_TABLE: dict[Reason, tuple[int, grpc.StatusCode, int, str]] = {
    Reason.INVALID_ARGUMENT: (1, grpc.StatusCode.INVALID_ARGUMENT, 400, "invalid_request_error"),
    Reason.CONTEXT_OVERFLOW: (2, grpc.StatusCode.OUT_OF_RANGE, 400, "invalid_request_error"),
    Reason.MODEL_NOT_FOUND: (3, grpc.StatusCode.NOT_FOUND, 404, "invalid_request_error"),
    Reason.OVERLOADED: (4, grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "rate_limit_error"),
    Reason.NO_DEVICE: (5, grpc.StatusCode.UNAVAILABLE, 503, "server_error"),
    Reason.DEVICE_LOST: (6, grpc.StatusCode.UNAVAILABLE, 503, "server_error"),
    Reason.ENGINE_CRASHED: (7, grpc.StatusCode.UNAVAILABLE, 503, "server_error"),
    Reason.CANCELLED: (8, grpc.StatusCode.CANCELLED, 499, "invalid_request_error"),
    Reason.DEADLINE_EXCEEDED: (9, grpc.StatusCode.DEADLINE_EXCEEDED, 504, "server_error"),
    Reason.UNAUTHENTICATED: (10, grpc.StatusCode.UNAUTHENTICATED, 401, "authentication_error"),
    Reason.PERMISSION_DENIED: (11, grpc.StatusCode.PERMISSION_DENIED, 403, "permission_error"),
    Reason.UPSTREAM: (12, grpc.StatusCode.UNAVAILABLE, 502, "server_error"),
    Reason.DRAINING: (13, grpc.StatusCode.UNAVAILABLE, 503, "server_error"),
    Reason.SLO_UNREACHABLE: (14, grpc.StatusCode.FAILED_PRECONDITION, 503, "server_error"),
    Reason.INTERNAL: (15, grpc.StatusCode.INTERNAL, 500, "server_error"),
    # 402 rather than 429: clients retry a 429 by themselves, and no retry brings money.
    Reason.BUDGET_EXCEEDED: (16, grpc.StatusCode.RESOURCE_EXHAUSTED, 402, "insufficient_quota"),
    Reason.RATE_LIMITED: (17, grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "rate_limit_error"),
}
_BY_WIRE = {row[0]: reason for reason, row in _TABLE.items()}

# A request that failed so before its first token may go to another device.
RETRYABLE_ELSEWHERE = frozenset(
    {Reason.OVERLOADED, Reason.DEVICE_LOST, Reason.ENGINE_CRASHED, Reason.DRAINING}
)


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The times that a refused request would have met; TPOT None: not predicted."""

    ttft_ms: float
    tpot_ms: float | None = None


class ShoalError(Exception):
    """A failure with a public message that names the parameter and the remedy."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        param: str = "",
        retry_after_ms: int = 0,
        foreseen: Foreseen | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.param = param
        self.retry_after_ms = retry_after_ms
        self.foreseen = foreseen

    @property
    def http_status(self) -> int:
        """HTTP status for the gateway's answer."""
        return _TABLE[self.reason][2]

    @property
    def openai_type(self) -> str:
        """`error.type` in OpenAI's error shape."""
        return _TABLE[self.reason][3]

    @property
    def grpc_code(self) -> grpc.StatusCode:
        """Status for a failed RPC."""
        return _TABLE[self.reason][1]

    def to_wire(self) -> pb.Failed:
        """The failure as the terminal update of a sequence."""
        foreseen = self.foreseen
        return pb.Failed(
            reason=_TABLE[self.reason][0],  # type: ignore[arg-type]  # stubs want the enum's class
            message=self.message,
            param=self.param,
            retry_after_ms=self.retry_after_ms,
            predicted_ttft_ms=None if foreseen is None else foreseen.ttft_ms,
            predicted_tpot_ms=None if foreseen is None else foreseen.tpot_ms,
        )

    @classmethod
    def from_wire(cls, failed: pb.Failed) -> ShoalError:
        """The failure a peer reported; an unknown reason of a newer peer counts as internal."""
        foreseen = None
        if failed.HasField("predicted_ttft_ms"):
            has_tpot = failed.HasField("predicted_tpot_ms")
            tpot_ms = failed.predicted_tpot_ms if has_tpot else None
            foreseen = Foreseen(failed.predicted_ttft_ms, tpot_ms)
        return cls(
            _BY_WIRE.get(failed.reason, Reason.INTERNAL),
            failed.message,
            param=failed.param,
            retry_after_ms=failed.retry_after_ms,
            foreseen=foreseen,
        )


def invalid(param: str, message: str) -> ShoalError:
    """A refusal of one request parameter."""
    return ShoalError(Reason.INVALID_ARGUMENT, message, param=param)
