"""Wire request to engine request: validation, chat template, tokens."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
from dataclasses import dataclass
from typing import Any

from agent.engine.guard import ControlTokenGuard, PromptPart
from agent.engine.request import GenerationRequest, RequestKey, SamplingParams
from agent.engine.stops import check_stops
from agent.engine.template import ChatTemplate
from agent.llama.vocab import Vocab
from shoal.errors import Reason, ShoalError, invalid
from shoal.v1 import inference_pb2 as pb

# OpenAI's limit for chat completions.
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
# Tokenising more than this would hold up the event loop for a millisecond.
_INLINE_CHARS = 8_192

# A level that this version does not know shares nothing.
_SHARED = frozenset({pb.PRIVACY_UNSPECIFIED, pb.PRIVACY_ANY, pb.PRIVACY_LOCAL_PREFERRED})


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """What bounds a request to one model."""

    model_name: str
    context_tokens: int


class RequestPreparer:
    """Turns wire requests into engine requests; raises ShoalError naming the parameter."""

    def __init__(self, vocab: Vocab, template: ChatTemplate | None, limits: PromptLimits) -> None:
        self._vocab = vocab
        self._template = template
        self._limits = limits
        self._guard = ControlTokenGuard(vocab.control_texts, lambda: secrets.token_hex(8))

    def piece(self, token: int) -> bytes:
        """A token's bytes in output."""
        return self._vocab.piece(token)

    async def prepare(self, request: pb.GenerateRequest, session_id: int) -> GenerationRequest:
        """The validated, tokenised request. Never truncates: what does not fit is refused."""
        arrived_s = time.monotonic()
        if not request.request_id:
            raise invalid("request_id", "request_id: must not be empty")
        if request.model and request.model != self._limits.model_name:
            raise ShoalError(
                Reason.MODEL_NOT_FOUND,
                f"model: this engine serves {self._limits.model_name}, not {request.model}",
                param="model",
            )
        check_stops(request.stop)
        sampling = self.sampling(request)
        param = "messages" if request.WhichOneof("prompt") == "chat" else "prompt"
        prompt = await self._tokens(request)
        if not prompt:
            raise invalid(param, f"{param}: must not be empty")
        return GenerationRequest(
            key=RequestKey(session_id, request.request_id),
            prompt=tuple(prompt),
            sampling=sampling,
            max_tokens=self._max_tokens(request, len(prompt), param),
            stop=tuple(request.stop),
            ignore_eos=request.ignore_eos,
            priority=request.hints.priority,
            deadline_unix_s=request.deadline_unix_ms / 1e3 if request.deadline_unix_ms else None,
            arrived_s=arrived_s,
            tenant=request.tenant,
            tenant_salt=request.tenant_salt,
            share_blocks=request.hints.privacy in _SHARED,
        )

    def _max_tokens(self, request: pb.GenerateRequest, num_prompt: int, param: str) -> int:
        context = self._limits.context_tokens
        if num_prompt >= context:
            raise _overflow(param, context, f"the prompt has {num_prompt} tokens")
        if not request.HasField("max_tokens"):
            return context - num_prompt
        if request.max_tokens < 1:
            raise invalid("max_tokens", "max_tokens: must be at least 1")
        if num_prompt + request.max_tokens > context:
            asked = (
                f"{num_prompt + request.max_tokens} tokens were requested "
                f"({num_prompt} in the {param}, {request.max_tokens} in the completion)"
            )
            raise _overflow("max_tokens", context, asked)
        return int(request.max_tokens)

    async def _tokens(self, request: pb.GenerateRequest) -> list[int]:
        kind = request.WhichOneof("prompt")
        if kind == "tokens":
            ids = list(request.tokens.ids)
            if ids and max(ids) >= self._vocab.size:
                raise invalid("prompt", f"prompt: token {max(ids)} is not below {self._vocab.size}")
            return ids
        if kind == "text":
            self._check_size(len(request.text), "prompt")
            if not request.text:
                return []
            return await self._tokenize([PromptPart(request.text, False)])
        if kind == "chat":
            return await self._chat_tokens(request.chat)
        raise invalid("prompt", "prompt: messages, text or tokens are needed")

    async def _chat_tokens(self, chat: pb.ChatPrompt) -> list[int]:
        if not chat.messages:
            raise invalid("messages", "messages: must not be empty")
        if self._template is None:
            raise invalid(
                "messages",
                "messages: this model has no usable chat template; use a text completion instead",
            )
        self._check_size(sum(len(m.content) for m in chat.messages), "messages")
        contents, parts = self._guard.protect([m.content for m in chat.messages])
        messages = [
            _template_message(message, content)
            for message, content in zip(chat.messages, contents, strict=True)
        ]
        rendered = await self._template.render(messages, _tools(chat.tools_json))
        self._check_size(len(rendered), "messages")
        return await self._tokenize(parts(rendered))

    async def _tokenize(self, parts: list[PromptPart]) -> list[int]:
        if sum(len(part.text) for part in parts) <= _INLINE_CHARS:
            return self._vocab.tokenize_parts(parts)
        return await asyncio.to_thread(self._vocab.tokenize_parts, parts)

    def _check_size(self, num_chars: int, param: str) -> None:
        """Refuse before tokenising what cannot fit: a token has so many bytes at most."""
        context = self._limits.context_tokens
        fewest = num_chars // self._vocab.longest_piece_bytes
        if fewest > context:
            raise _overflow(param, context, f"the prompt has at least {fewest} tokens")

    def sampling(self, request: pb.GenerateRequest) -> SamplingParams:
        """The validated sampling of a request. Raises ShoalError naming the parameter."""
        wire = request.sampling
        values: dict[str, Any] = {
            field.name: value for field, value in wire.ListFields() if field.name != "logit_bias"
        }
        for name, value in values.items():
            if not math.isfinite(value):
                raise invalid(name, f"{name}: must be a finite number")
        if "seed" in values:
            values["seed"] = int(values["seed"])
        bias = dict(wire.logit_bias)
        self._check_bias(bias)
        if request.HasField("top_logprobs"):
            if request.top_logprobs > MAX_TOP_LOGPROBS:
                raise invalid("top_logprobs", f"top_logprobs: must be at most {MAX_TOP_LOGPROBS}")
            values["top_logprobs"] = min(request.top_logprobs, self._vocab.size)
        values["measure_confidence"] = request.measure_confidence
        params = SamplingParams(**values, logit_bias=bias)
        _check_ranges(params)
        return params

    def _check_bias(self, bias: dict[int, float]) -> None:
        if len(bias) > MAX_LOGIT_BIAS:
            raise invalid("logit_bias", f"logit_bias: at most {MAX_LOGIT_BIAS} tokens")
        for token, value in bias.items():
            if token >= self._vocab.size:
                raise invalid(
                    "logit_bias", f"logit_bias: token {token} is not below {self._vocab.size}"
                )
            if not math.isfinite(value):
                raise invalid("logit_bias", "logit_bias: biases must be finite numbers")


def _check_ranges(params: SamplingParams) -> None:
    if params.temperature < 0:
        raise invalid("temperature", "temperature: must not be negative")
    if not 0 < params.top_p <= 1:
        raise invalid("top_p", "top_p: must be above 0 and at most 1")
    if not 0 <= params.min_p <= 1:
        raise invalid("min_p", "min_p: must be between 0 and 1")
    if params.top_k > 2**31 - 1:
        raise invalid("top_k", "top_k: must be below 2^31")
    if params.repeat_penalty <= 0:
        raise invalid("repeat_penalty", "repeat_penalty: must be positive")


def _overflow(param: str, context: int, asked: str) -> ShoalError:
    return ShoalError(
        Reason.CONTEXT_OVERFLOW,
        f"{param}: this model's context is {context} tokens here, but {asked}; shorten it",
        param=param,
    )


def _template_message(message: pb.ChatMessage, content: str) -> dict[str, str]:
    fields = {"role": message.role, "content": content}
    if message.name:
        fields["name"] = message.name
    return fields


def _tools(tools_json: str) -> list[Any] | None:
    if not tools_json:
        return None
    try:
        tools = json.loads(tools_json)
    except ValueError as error:
        raise invalid("tools", f"tools: not valid JSON: {error}") from error
    if not isinstance(tools, list):
        raise invalid("tools", "tools: must be a list")
    return tools
