"""Asking an OpenAI-compatible server: the wire's request as its JSON, its JSON as ours.

Pure: who asks, and what a server's faults mean, is its callers' business (the cloud's
endpoints, a device's companion server).
"""

from __future__ import annotations

import json
import math
from typing import Any

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
    if request.ignore_eos:
        # Not OpenAI's: callers ask servers that know it only.
        body["ignore_eos"] = True
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


def read_delta(choice: dict[str, Any]) -> pb.Delta | None:
    """A chunk's text and log-probabilities, None when it brings neither.

    ValueError, TypeError, AttributeError, LookupError or OverflowError when it is not
    in OpenAI's format.
    """
    delta = choice.get("delta")
    text = (delta.get("content") if isinstance(delta, dict) else choice.get("text")) or ""
    logprobs = _logprobs(choice.get("logprobs"))
    if not text and not logprobs:
        return None
    return pb.Delta(text=text, logprobs=logprobs)


def read_usage(usage: dict[str, Any]) -> pb.Usage | None:
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


def error_text(body: bytes) -> str:
    """What an HTTP error's body says, in OpenAI's shape or near it."""
    try:
        return said(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return "no reason given"


def said(error: object) -> str:
    """The message of an error object, or of what stands in its place."""
    return str(error.get("message", "no reason given") if isinstance(error, dict) else error)


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
