"""`POST /v1/chat/completions`: validation."""

from __future__ import annotations

from typing import Any

from shoal.errors import invalid
from shoal.openai import fields
from shoal.openai.fields import Fields
from shoal.openai.request import Message, TextRequest, parse_max_tokens, parse_options
from shoal.openai.sampling import MAX_TOP_LOGPROBS

MAX_MESSAGES = 4096
# `developer` is OpenAI's later name of `system`; chat templates know only the latter.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def parse_chat(data: dict[str, Any]) -> TextRequest:
    """A chat request from its JSON object; raises `ShoalError` naming the parameter."""
    body = Fields(data)
    options = parse_options(body)
    return TextRequest(
        model=options.model,
        prompts=(_messages(body),),
        chat=True,
        sampling=options.sampling,
        stop=options.stop,
        max_tokens=parse_max_tokens(body, "max_completion_tokens", "max_tokens"),
        top_logprobs=_top_logprobs(body),
        num_choices=options.num_choices,
        stream=options.stream,
        include_usage=options.include_usage,
        ignore_eos=options.ignore_eos,
        user=options.user,
        hints=options.hints,
    )


def _top_logprobs(body: Fields) -> int | None:
    wanted = body.flag("logprobs")
    top = body.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top and not wanted:
        raise invalid("top_logprobs", "'top_logprobs' needs 'logprobs': true.")
    return (top or 0) if wanted else None


def _messages(body: Fields) -> tuple[Message, ...]:
    value = body.raw("messages")
    if value is None:
        raise invalid("messages", "'messages' is required.")
    if not isinstance(value, list):
        raise invalid("messages", f"'messages' must be an array, not {fields.kind(value)}.")
    if not value:
        raise invalid("messages", "'messages' must hold at least one message.")
    if len(value) > MAX_MESSAGES:
        raise invalid("messages", f"'messages' may hold at most {MAX_MESSAGES} messages.")
    return tuple(_message(item, f"messages[{i}]") for i, item in enumerate(value))


def _message(value: object, param: str) -> Message:
    if not isinstance(value, dict):
        raise invalid(param, f"'{param}' must be an object, not {fields.kind(value)}.")
    message = Fields(value, param)
    role = message.text("role")
    if role is None:
        raise invalid(message.param("role"), f"'{message.param('role')}' is required.")
    if role in ("tool", "function"):
        raise fields.not_supported(message.param("role"), f"The role '{role}'")
    if role not in _ROLES:
        raise invalid(
            message.param("role"),
            f"'{message.param('role')}' must be one of {', '.join(_ROLES)}.",
        )
    for name in ("tool_calls", "function_call", "audio"):
        message.unsupported(name)
    return Message(
        role=_ROLES[role],
        content=_content(message.raw("content"), message.param("content")),
        name=message.text("name") or "",
    )


def _content(value: object, param: str) -> str:
    if isinstance(value, str):
        return fields.text(value, param)
    if not isinstance(value, list):
        raise invalid(
            param,
            f"'{param}' must be a string or an array of text parts, not {fields.kind(value)}.",
        )
    if not value:
        raise invalid(param, f"'{param}' must hold at least one part.")
    return "".join(_part(part, f"{param}[{i}]") for i, part in enumerate(value))


def _part(value: object, param: str) -> str:
    if not isinstance(value, dict):
        raise invalid(param, f"'{param}' must be an object, not {fields.kind(value)}.")
    part = Fields(value, param)
    part_type = part.text("type")
    if part_type is None:
        raise invalid(part.param("type"), f"'{part.param('type')}' is required.")
    if part_type != "text":
        raise fields.not_supported(part.param("type"), f"Content other than text ('{param}')")
    text = part.text("text")
    if text is None:
        raise invalid(part.param("text"), f"'{part.param('text')}' is required.")
    return text
