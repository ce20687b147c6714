"""Reading an OpenAI-compatible endpoint's stream; whatever is wrong with it is its fault."""

from __future__ import annotations

from typing import Any

from orchestrator.dispatch.faults import EndpointFault, FaultKind
from shoal.openai.upstream import read_delta, read_usage, said
from shoal.v1 import inference_pb2 as pb

_TOOL_CALLS = ("tool_calls", "function_call")


class ChunkReader:
    """Gathers one endpoint's stream: text as it comes, the end and the claimed usage."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.finish_reason = ""
        self.claimed: pb.Usage | None = None

    def read(self, chunk: object) -> pb.Delta | None:
        """The chunk's text, None when it brings none.

        Raises the fault that it reports, or MALFORMED for anything else than a chunk.
        """
        if not isinstance(chunk, dict):
            raise EndpointFault(FaultKind.MALFORMED, self._endpoint)
        if chunk.get("error"):
            raise EndpointFault(FaultKind.SERVER_ERROR, self._endpoint, said=said(chunk["error"]))
        try:
            return self._read(chunk)
        except (ValueError, TypeError, AttributeError, LookupError, OverflowError) as error:
            # Whatever an endpoint sends that is not OpenAI's format ends here.
            raise EndpointFault(FaultKind.MALFORMED, self._endpoint) from error

    def _read(self, chunk: dict[str, Any]) -> pb.Delta | None:
        if isinstance(chunk.get("usage"), dict):
            self.claimed = read_usage(chunk["usage"])
        choices = chunk.get("choices")
        if not choices:
            return None
        choice = choices[0]
        self.finish_reason = str(choice.get("finish_reason") or self.finish_reason)
        if self.finish_reason in _TOOL_CALLS:
            raise EndpointFault(FaultKind.TOOL_CALL, self._endpoint)
        return read_delta(choice)
