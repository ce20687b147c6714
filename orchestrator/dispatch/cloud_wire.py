"""Between the wire's inference messages and an OpenAI-compatible endpoint's JSON."""

from __future__ import annotations

import json
from typing import Any

import httpx

from shoal.errors import Reason, ShoalError
from shoal.v1 import inference_pb2 as pb

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


def upstream_body(request: pb.GenerateRequest, upstream_model: str) -> dict[str, Any]:
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
    if request.HasField("max_tokens"):
        body["max_tokens"] = request.max_tokens
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
    """Gathers an endpoint's stream: text as it comes, the end and the usage for the end."""

    def __init__(self) -> None:
        self.finish_reason = ""
        self.usage = pb.Usage()
        self.num_deltas = 0

    def read(self, chunk: dict[str, Any]) -> pb.Delta | None:
        """The chunk's text, None when it brings none; raises the error it reports."""
        if isinstance(chunk.get("error"), dict):
            message = str(chunk["error"].get("message", "no reason given"))
            raise ShoalError(Reason.UPSTREAM, f"The cloud endpoint failed: {message}")
        if isinstance(chunk.get("usage"), dict):
            self.usage = _usage(chunk["usage"])
        choices = chunk.get("choices")
        if not choices:
            return None
        choice = choices[0]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        delta = choice.get("delta")
        text = (delta.get("content") if isinstance(delta, dict) else choice.get("text")) or ""
        logprobs = _logprobs(choice.get("logprobs"))
        if not text and not logprobs:
            return None
        self.num_deltas += 1
        return pb.Delta(text=text, logprobs=logprobs)

    def finished(self) -> pb.Finished:
        """The end; raises UPSTREAM when the endpoint never said that it was one."""
        if not self.finish_reason:
            raise ShoalError(Reason.UPSTREAM, "The cloud endpoint's answer broke off. Try again.")
        length = self.finish_reason == "length"
        return pb.Finished(
            reason=pb.Finished.REASON_LENGTH if length else pb.Finished.REASON_STOP,
            usage=self.usage,
        )


def _usage(usage: dict[str, Any]) -> pb.Usage:
    details = usage.get("prompt_tokens_details") or {}
    return pb.Usage(
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        completion_tokens=int(usage.get("completion_tokens") or 0),
        cached_tokens=int(details.get("cached_tokens") or 0),
    )


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


def refusal(endpoint: str, response: httpx.Response, body: bytes) -> ShoalError:
    """What an HTTP error of the endpoint means to our client.

    Its credentials are ours, so 401 and 403 are our failure and not the client's.
    """
    status = response.status_code
    message = _upstream_message(body)
    if status == 429:
        return ShoalError(
            Reason.OVERLOADED,
            f"The cloud endpoint {endpoint} is rate limited. Try again later.",
            retry_after_ms=_retry_after_ms(response),
        )
    if status in (400, 404, 413, 422):
        return ShoalError(Reason.INVALID_ARGUMENT, f"The cloud endpoint refused: {message}")
    if status in (401, 403):
        message = "it does not accept the configured key"
    return ShoalError(
        Reason.UPSTREAM, f"The cloud endpoint {endpoint} failed ({status}): {message}"
    )


def _upstream_message(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)[:500]
    except (ValueError, KeyError, TypeError):
        return "no reason given"


def _retry_after_ms(response: httpx.Response) -> int:
    try:
        return max(0, min(3600, int(response.headers.get("retry-after", "1")))) * 1000
    except ValueError:
        return 1000
