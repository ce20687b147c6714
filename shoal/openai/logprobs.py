"""Log-probabilities in the two shapes of OpenAI's API."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from shoal.v1 import inference_pb2 as pb

# JSON has no infinities; OpenAI writes this for "as good as impossible".
_FLOOR = -9999.0


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) and logprob > _FLOOR else _FLOOR


def _text(item: pb.TokenLogprob) -> str:
    return item.text.decode("utf-8", errors="replace")


def chat_logprobs(items: Iterable[pb.TokenLogprob]) -> dict[str, Any]:
    """`choices[].logprobs` of a chat completion or of one of its chunks."""
    return {
        "content": [
            {**_chat_token(item), "top_logprobs": [_chat_token(top) for top in item.top]}
            for item in items
        ],
        "refusal": None,
    }


def _chat_token(item: pb.TokenLogprob) -> dict[str, Any]:
    return {"token": _text(item), "logprob": _finite(item.logprob), "bytes": list(item.text)}


def completion_logprobs(items: Iterable[pb.TokenLogprob], offset: int) -> dict[str, Any]:
    """`choices[].logprobs` of a completion; `offset` in characters, of the first token."""
    result: dict[str, Any] = {
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
        "text_offset": [],
    }
    for item in items:
        token = _text(item)
        result["tokens"].append(token)
        result["token_logprobs"].append(_finite(item.logprob))
        result["top_logprobs"].append({_text(top): _finite(top.logprob) for top in item.top})
        result["text_offset"].append(offset)
        offset += len(token)
    return result
