"""Between the wire's inference messages and an OpenAI-compatible endpoint's JSON."""

from __future__ import annotations

import json
import math
from typing import Any

from orchestrator.dispatch.faults import EndpointFault, FaultKind
from shoal.v1 import inference_pb2 as pb

_MAX_CLAIM = 2**31
_SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repeat_penalty",
    "seed",
)


def upstream_body(
    request: pb.GenerateRequest, upstream_model: str, max_tokens: int | None
) -> dict[str, Any]:
    """The JSON to post; fields that the client left out stay out."""
    body: dict[str, Any] = {
        "model": upstream_model,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    for name in _SAMPLING_FIELDS:
        if request.sampling.HasField(name):
            body[name] = getattr(request.sampling, name)
    if request.sampling.logit_bias:
        body["logit_bias"] = {str(k): v for k, v in request.sampling.logit_bias.items()}
    if request.stop:
        body["stop"] = list(request.stop)
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    chat = request.WhichOneof("prompt") == "chat"
    if request.HasField("top_logprobs"):
        if chat:
            body.update(logprobs=True, top_logprobs=request.top_logprobs)
        else:
            body["logprobs"] = request.top_logprobs
    if chat:
        body["messages"] = [_message(message) for message in request.chat.messages]
    elif request.WhichOneof("prompt") == "tokens":
        body["prompt"] = list(request.tokens.ids)
    else:
        body["prompt"] = request.text
    return body


def _message(message: pb.ChatMessage) -> dict[str, str]:
    result = {"role": message.role, "content": message.content}
    if message.name:
        result["name"] = message.name
    return result


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
            raise EndpointFault(FaultKind.SERVER_ERROR, self._endpoint, said=_said(chunk["error"]))
        try:
            return self._read(chunk)
        except (ValueError, TypeError, AttributeError, LookupError, OverflowError) as error:
            # Whatever an endpoint sends that is not OpenAI's format ends here.
            raise EndpointFault(FaultKind.MALFORMED, self._endpoint) from error

    def _read(self, chunk: dict[str, Any]) -> pb.Delta | None:
        if isinstance(chunk.get("usage"), dict):
            self.claimed = _usage(chunk["usage"])
        choices = chunk.get("choices")
        if not choices:
            return None
        choice = choices[0]
        self.finish_reason = str(choice.get("finish_reason") or self.finish_reason)
        delta = choice.get("delta")
        text = (delta.get("content") if isinstance(delta, dict) else choice.get("text")) or ""
        logprobs = _logprobs(choice.get("logprobs"))
        if not text and not logprobs:
            return None
        return pb.Delta(text=text, logprobs=logprobs)


def error_text(body: bytes) -> str:
    """What an HTTP error's body says, in OpenAI's shape or near it."""
    try:
        return _said(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return "no reason given"


def _said(error: object) -> str:
    return str(error.get("message", "no reason given") if isinstance(error, dict) else error)


def _usage(usage: dict[str, Any]) -> pb.Usage | None:
    """The claim; None when it is none. Numbers that no message holds are cut to what one does."""
    numbers = [usage.get("prompt_tokens"), usage.get("completion_tokens")]
    if not all(isinstance(n, int | float) and not math.isnan(n) for n in numbers):
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return pb.Usage(
        prompt_tokens=_bounded(numbers[0]),
        completion_tokens=_bounded(numbers[1]),
        cached_tokens=_bounded(cached),
    )


def _bounded(number: Any) -> int:
    if not isinstance(number, int | float) or math.isnan(number):
        return 0
    return int(max(0, min(_MAX_CLAIM, number)))


def _logprobs(value: object) -> list[pb.TokenLogprob]:
    if not isinstance(value, dict):
        return []
    if isinstance(value.get("content"), list):
        return [_chat_token(item, item.get("top_logprobs") or []) for item in value["content"]]
    tokens, logprobs = value.get("tokens") or [], value.get("token_logprobs") or []
    tops = value.get("top_logprobs") or [{}] * len(tokens)
    return [
        pb.TokenLogprob(
            text=token.encode(),
            logprob=logprob or 0.0,
            top=[pb.TokenLogprob(text=t.encode(), logprob=p) for t, p in (top or {}).items()],
        )
        for token, logprob, top in zip(tokens, logprobs, tops, strict=False)
    ]


def _chat_token(item: dict[str, Any], top: list[dict[str, Any]]) -> pb.TokenLogprob:
    raw = item.get("bytes")
    return pb.TokenLogprob(
        text=bytes(raw) if raw else str(item.get("token", "")).encode(),
        logprob=float(item.get("logprob") or 0.0),
        top=[_chat_token(other, []) for other in top],
    )
