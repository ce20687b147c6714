"""`POST /v1/completions`: validation."""

from __future__ import annotations

from typing import Any

from shoal.errors import invalid
from shoal.openai import fields
from shoal.openai.fields import Fields
from shoal.openai.request import Prompt, TextRequest, parse_max_tokens, parse_options
from shoal.openai.sampling import MAX_TOP_LOGPROBS

MAX_PROMPTS = 64
# OpenAI's default for this endpoint.
DEFAULT_MAX_TOKENS = 16
_MAX_TOKEN_ID = 2**31 - 1


def parse_completion(data: dict[str, Any]) -> TextRequest:
    """A completion request from its JSON object; raises `ShoalError` naming the parameter."""
    body = Fields(data)
    options = parse_options(body)
    body.unsupported("suffix")
    best_of = body.integer("best_of", 1, MAX_PROMPTS)
    if best_of is not None and best_of != options.num_choices:
        raise fields.not_supported("best_of", "'best_of' other than 'n'")
    prompts = _prompts(body.raw("prompt"))
    if len(prompts) * options.num_choices > MAX_PROMPTS:
        raise invalid("n", f"At most {MAX_PROMPTS} choices a request: prompts times 'n'.")
    top_logprobs = body.integer("logprobs", 0, MAX_TOP_LOGPROBS)
    echo = body.flag("echo")
    if echo and top_logprobs is not None:
        raise fields.not_supported("echo", "'echo' together with 'logprobs'")
    if echo and not all(isinstance(prompt, str) for prompt in prompts):
        raise fields.not_supported("echo", "'echo' of a prompt given as token ids")
    return TextRequest(
        model=options.model,
        prompts=prompts,
        chat=False,
        sampling=options.sampling,
        stop=options.stop,
        max_tokens=parse_max_tokens(body, "max_tokens") or DEFAULT_MAX_TOKENS,
        top_logprobs=top_logprobs,
        num_choices=options.num_choices,
        stream=options.stream,
        include_usage=options.include_usage,
        echo=echo,
        ignore_eos=options.ignore_eos,
        user=options.user,
        hints=options.hints,
    )


def _prompts(value: object) -> tuple[Prompt, ...]:
    if value is None:
        raise invalid("prompt", "'prompt' is required.")
    if isinstance(value, str):
        return (_text(value, "prompt"),)
    if not isinstance(value, list):
        raise invalid("prompt", f"'prompt' must be a string or an array, not {fields.kind(value)}.")
    if not value:
        raise invalid("prompt", "'prompt' must not be empty.")
    if isinstance(value[0], int) and not isinstance(value[0], bool):
        return (_tokens(value, "prompt"),)
    if len(value) > MAX_PROMPTS:
        raise invalid("prompt", f"'prompt' may hold at most {MAX_PROMPTS} prompts.")
    return tuple(_prompt(item, f"prompt[{i}]") for i, item in enumerate(value))


def _prompt(value: object, param: str) -> Prompt:
    if isinstance(value, list):
        return _tokens(value, param)
    return _text(value, param)


def _text(value: object, param: str) -> str:
    prompt = fields.text(value, param)
    if not prompt:
        raise invalid(param, f"'{param}' must not be empty.")
    return prompt


def _tokens(value: list[object], param: str) -> tuple[int, ...]:
    if not value:
        raise invalid(param, f"'{param}' must not be empty.")
    return tuple(
        fields.integer(item, f"{param}[{i}]", 0, _MAX_TOKEN_ID) for i, item in enumerate(value)
    )
