"""Parameters that decide how tokens are drawn and where a generation ends."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.errors import invalid
from shoal.openai import fields
from shoal.openai.fields import Fields

# OpenAI's own limits, from its API reference.
MAX_STOP_STRINGS = 4
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIASES = 1024
# Longer stop strings would make the engine hold back that much text.
MAX_STOP_BYTES = 1024
# No model's context is longer; the engine refuses what goes beyond its own.
MAX_TOKENS = 1_000_000
_TOKEN_ID = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """None: the engine's documented default (inference.proto)."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_penalty: float | None = None
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)


def parse_sampling(body: Fields) -> SamplingParams:
    """The sampling fields of a chat or completion request; llama's extras included."""
    top_k = body.integer("top_k", -1, 2**31 - 1)
    seed = body.integer("seed", -(2**63), 2**64 - 1)
    return SamplingParams(
        temperature=body.number("temperature", 0, 2),
        top_p=body.number("top_p", 0, 1),
        # Other servers write "off" as -1.
        top_k=0 if top_k == -1 else top_k,
        min_p=body.number("min_p", 0, 1),
        presence_penalty=body.number("presence_penalty", -2, 2),
        frequency_penalty=body.number("frequency_penalty", -2, 2),
        repeat_penalty=body.number("repeat_penalty", 0.01, 10),
        seed=None if seed is None else seed % 2**64,
        logit_bias=_logit_bias(body),
    )


def _logit_bias(body: Fields) -> dict[int, float]:
    biases = body.nested("logit_bias")
    if biases is None:
        return {}
    names = biases.names()
    if len(names) > MAX_LOGIT_BIASES:
        raise invalid(
            "logit_bias",
            f"'logit_bias' may hold at most {MAX_LOGIT_BIASES} tokens, not {len(names)}.",
        )
    result: dict[int, float] = {}
    for name in names:
        if not _TOKEN_ID.fullmatch(name):
            raise invalid("logit_bias", "'logit_bias' must map token ids to numbers.")
        result[int(name)] = fields.number(biases.raw(name), f"logit_bias.{name}", -100, 100)
    return result


def parse_stop(body: Fields) -> tuple[str, ...]:
    """`stop` as a string or up to four of them."""
    value = body.raw("stop")
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise invalid(
            "stop", f"'stop' must be a string or an array of strings, not {fields.kind(value)}."
        )
    if len(value) > MAX_STOP_STRINGS:
        raise invalid(
            "stop", f"'stop' may hold at most {MAX_STOP_STRINGS} strings, not {len(value)}."
        )
    stops = tuple(fields.text(item, f"stop[{i}]") for i, item in enumerate(value))
    for i, stop in enumerate(stops):
        if not stop:
            raise invalid(f"stop[{i}]", f"'stop[{i}]' must not be empty.")
        if len(stop.encode()) > MAX_STOP_BYTES:
            raise invalid(f"stop[{i}]", f"'stop[{i}]' is longer than {MAX_STOP_BYTES} bytes.")
    return stops
