"""Server-sent events of a streamed response.

All that is constant in a response is rendered once; a token costs one escape
and one concatenation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as _quoted

from shoal.openai.logprobs import chat_logprobs, completion_logprobs
from shoal.openai.outcome import Outcome, response_extension, usage
from shoal.openai.request import TextRequest
from shoal.v1 import inference_pb2 as pb

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What every chunk, or the whole answer, carries alike."""

    response_id: str
    model: str
    created_unix_s: int


class StreamRenderer:
    """Renders the choices of one response; the caller calls it in the order of events."""

    def __init__(self, head: ResponseHead, request: TextRequest) -> None:
        self._chat = request.chat
        self._include_usage = request.include_usage
        self._choices_per_prompt = request.num_choices
        kind = "chat.completion.chunk" if request.chat else "text_completion"
        self._open = (
            f'data: {{"id":{json.dumps(head.response_id)},"object":"{kind}",'
            f'"created":{head.created_unix_s},"model":{json.dumps(head.model)},'
            '"system_fingerprint":null,'
        )
        # With usage asked for, every other chunk carries a null one.
        self._close = ',"usage":null}\n\n' if request.include_usage else "}\n\n"
        num_choices = len(request.prompts) * request.num_choices
        self._prefixes = [self._prefix(index) for index in range(num_choices)]
        self._offsets = [0] * num_choices
        self._unfinished = num_choices
        self._suffix = (
            f'}},"logprobs":null,"finish_reason":null}}]{self._close}'
            if request.chat
            else f',"logprobs":null,"finish_reason":null}}]{self._close}'
        )

    def _prefix(self, index: int) -> str:
        field = '"delta":{"content":' if self._chat else '"text":'
        return f'{self._open}"choices":[{{"index":{index},{field}'

    def begin(self, index: int, echo: str = "") -> str:
        """The role delta of a chat's choice, or the echoed prompt of a completion's."""
        if self._chat:
            return (
                f'{self._open}"choices":[{{"index":{index},"delta":'
                '{"role":"assistant","content":"","refusal":null},'
                f'"logprobs":null,"finish_reason":null}}]{self._close}'
            )
        self._offsets[index] = len(echo)
        return self.text(index, echo) if echo else ""

    def text(self, index: int, text: str) -> str:
        """A delta without log-probabilities."""
        return self._prefixes[index] + _quoted(text) + self._suffix

    def delta(self, index: int, delta: pb.Delta) -> str:
        """A delta; empty when it says nothing."""
        if not delta.logprobs:
            return self.text(index, delta.text) if delta.text else ""
        if self._chat:
            logprobs = chat_logprobs(delta.logprobs)
            closing = "}"
        else:
            logprobs = completion_logprobs(delta.logprobs, self._offsets[index])
            self._offsets[index] += len(delta.text)
            closing = ""
        return (
            f"{self._prefixes[index]}{_quoted(delta.text)}{closing},"
            f'"logprobs":{json.dumps(logprobs)},"finish_reason":null}}]{self._close}'
        )

    def restart(self, index: int, restarted: pb.Restarted) -> str:
        """The event that voids the choice's text so far; what follows is another answer."""
        field = '"delta":{}' if self._chat else '"text":""'
        told = {
            "index": index,
            "reason": restarted.reason,
            "discarded_tokens": restarted.discarded_tokens,
        }
        self._offsets[index] = 0
        return (
            f'{self._open}"choices":[{{"index":{index},{field},"logprobs":null,'
            f'"finish_reason":null}}],"shoal":{{"restart":{json.dumps(told)}}}{self._close}'
        )

    def finish(self, index: int, outcomes: Sequence[Outcome]) -> str:
        """The choice's last chunk; the very last one carries `shoal` unless usage follows."""
        self._unfinished -= 1
        field = '"delta":{}' if self._chat else '"text":""'
        extension = ""
        if not self._unfinished and not self._include_usage:
            extension = f',"shoal":{json.dumps(response_extension(outcomes))}'
        return (
            f'{self._open}"choices":[{{"index":{index},{field},"logprobs":null,'
            f'"finish_reason":"{outcomes[index].finish_reason}"}}]{extension}{self._close}'
        )

    def end(self, outcomes: Sequence[Outcome]) -> bytes:
        """The usage chunk if it was asked for, and the end mark."""
        if not self._include_usage:
            return DONE
        chunk = (
            f'{self._open}"choices":[],'
            f'"usage":{json.dumps(usage(outcomes, self._choices_per_prompt))},'
            f'"shoal":{json.dumps(response_extension(outcomes))}}}\n\n'
        )
        return chunk.encode() + DONE
