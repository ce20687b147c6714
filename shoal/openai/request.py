"""A validated request for text, as the gateway and a device's local API see it."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.errors import invalid
from shoal.openai import fields
from shoal.openai.extension import RoutingHints, parse_extension
from shoal.openai.fields import Fields
from shoal.openai.sampling import MAX_TOKENS, SamplingParams, parse_sampling, parse_stop

MAX_CHOICES = 16
_MAX_NAME_CHARS = 256
# Known to OpenAI's API, not served here: refused by name, for a silent no would mislead.
_UNSUPPORTED = (
    "tools",
    "functions",
    "function_call",
    "audio",
    "prediction",
    "web_search_options",
    "grammar",
    "json_schema",
    "guided_json",
)
# The same, but for values that ask for what happens anyway.
_UNSUPPORTED_UNLESS = {
    "tool_choice": ("none", "auto"),
    "modalities": (["text"],),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "parallel_tool_calls": (True, False),
}


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message, its parts joined."""

    role: str
    content: str
    name: str = ""


# A prompt is a chat, a text, or token ids.
Prompt = tuple[Message, ...] | str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A chat or completion request.

    Each prompt yields `num_choices` choices; a chat has one prompt.
    `top_logprobs` None: no log-probabilities.
    """

    model: str
    prompts: tuple[Prompt, ...]
    chat: bool
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    top_logprobs: int | None = None
    num_choices: int = 1
    stream: bool = False
    include_usage: bool = False
    echo: bool = False
    ignore_eos: bool = False
    user: str = ""
    hints: RoutingHints = field(default_factory=RoutingHints)


@dataclass(frozen=True, slots=True)
class Options:
    """What chat and completion requests have in common."""

    model: str
    sampling: SamplingParams
    stop: tuple[str, ...]
    num_choices: int
    stream: bool
    include_usage: bool
    ignore_eos: bool
    user: str
    hints: RoutingHints


def parse_options(body: Fields) -> Options:
    """The common fields; refuses known ones that are not served."""
    model = body.text("model")
    if not model:
        raise invalid("model", "'model' is required. List what is served with GET /v1/models.")
    if len(model) > _MAX_NAME_CHARS:
        raise invalid("model", f"'model' is longer than {_MAX_NAME_CHARS} characters.")
    for name in _UNSUPPORTED:
        body.unsupported(name)
    for name, meaningless in _UNSUPPORTED_UNLESS.items():
        body.unsupported(name, unless=meaningless)
    _plain_response_format(body)
    stream = body.flag("stream")
    user = body.text("user") or ""
    if len(user) > _MAX_NAME_CHARS:
        raise invalid("user", f"'user' is longer than {_MAX_NAME_CHARS} characters.")
    return Options(
        model=model,
        sampling=parse_sampling(body),
        stop=parse_stop(body),
        num_choices=body.integer("n", 1, MAX_CHOICES) or 1,
        stream=stream,
        include_usage=_include_usage(body, stream),
        ignore_eos=body.flag("ignore_eos"),
        user=user,
        hints=parse_extension(body),
    )


def _plain_response_format(body: Fields) -> None:
    wanted = body.nested("response_format")
    if wanted is not None and wanted.text("type") not in (None, "text"):
        raise fields.not_supported("response_format", "'response_format' other than text")


def _include_usage(body: Fields, stream: bool) -> bool:
    options = body.nested("stream_options")
    if options is None:
        return False
    if not stream:
        raise invalid("stream_options", "'stream_options' is only allowed with 'stream': true.")
    return options.flag("include_usage")


def parse_max_tokens(body: Fields, *names: str) -> int | None:
    """The first of the named limits that is present."""
    limits = [body.integer(name, 1, MAX_TOKENS) for name in names]
    return next((limit for limit in limits if limit is not None), None)
