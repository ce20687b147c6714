"""The body of a response that is not streamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.openai.logprobs import chat_logprobs, completion_logprobs
from shoal.openai.outcome import Outcome, response_extension, usage
from shoal.openai.request import TextRequest
from shoal.openai.sse import ResponseHead
from shoal.v1 import inference_pb2 as pb


class Choice:
    """The text and log-probabilities of one choice; grows with each delta."""

    __slots__ = ("_parts", "echo", "logprobs", "outcome")

    def __init__(self, outcome: Outcome, echo: str = "") -> None:
        self.outcome = outcome
        self.echo = echo
        self.logprobs: list[pb.TokenLogprob] = []
        self._parts: list[str] = []

    def take(self, update: pb.SequenceUpdate) -> None:
        """Add what the update brings."""
        self.outcome.take(update)
        if update.HasField("restarted"):
            self._parts.clear()
            self.logprobs.clear()
        if update.HasField("delta"):
            self._parts.append(update.delta.text)
            self.logprobs.extend(update.delta.logprobs)

    @property
    def text(self) -> str:
        """All text so far, the echoed prompt first."""
        return self.echo + "".join(self._parts)


def answer_body(
    head: ResponseHead, request: TextRequest, choices: Sequence[Choice]
) -> dict[str, Any]:
    """The JSON object of a chat completion or completion."""
    outcomes = [choice.outcome for choice in choices]
    render = _chat_choice if request.chat else _completion_choice
    wants_logprobs = request.top_logprobs is not None
    return {
        "id": head.response_id,
        "object": "chat.completion" if request.chat else "text_completion",
        "created": head.created_unix_s,
        "model": head.model,
        "system_fingerprint": None,
        "choices": [render(i, choice, wants_logprobs) for i, choice in enumerate(choices)],
        "usage": usage(outcomes, request.num_choices),
        "shoal": response_extension(outcomes),
    }


def _chat_choice(index: int, choice: Choice, wants_logprobs: bool) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": chat_logprobs(choice.logprobs) if wants_logprobs else None,
        "finish_reason": choice.outcome.finish_reason,
    }


def _completion_choice(index: int, choice: Choice, wants_logprobs: bool) -> dict[str, Any]:
    logprobs = completion_logprobs(choice.logprobs, len(choice.echo)) if wants_logprobs else None
    return {
        "index": index,
        "text": choice.text,
        "logprobs": logprobs,
        "finish_reason": choice.outcome.finish_reason,
    }
