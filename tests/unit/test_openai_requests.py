"""Every malformed request is a 4xx that names the parameter, whatever the JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import Reason, ShoalError
from shoal.openai.body import MAX_BODY_BYTES, parse_body
from shoal.openai.chat import parse_chat
from shoal.openai.completion import parse_completion
from shoal.openai.request import Message, TextRequest
from shoal.openai.wire import Origin, to_generate_requests
from shoal.v1 import inference_pb2 as pb

USER = [{"role": "user", "content": "hi"}]


def chat(**changes: Any) -> TextRequest:
    return parse_chat({"model": "m", "messages": USER} | changes)


def refused_param(parse: Any, data: dict[str, Any]) -> str:
    with pytest.raises(ShoalError) as caught:
        parse(data)
    assert caught.value.reason is Reason.INVALID_ARGUMENT
    assert caught.value.message
    return caught.value.param


CHAT_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"model": 7}, "model"),
    ({"model": "m" * 300}, "model"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{}]}, "messages[0].role"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0].type",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    (
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]},
        "messages[0].tool_calls",
    ),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": 2.5}, "temperature"),
    ({"top_p": float("inf")}, "top_p"),
    ({"top_p": 10**400}, "top_p"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": -0.1}, "min_p"),
    ({"repeat_penalty": 0}, "repeat_penalty"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"seed": "x"}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10**9}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"n": 0}, "n"),
    ({"n": 1000}, "n"),
    ({"stop": 1}, "stop"),
    ({"stop": ["x"] * 100_000}, "stop"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": ["a", 1]}, "stop[1]"),
    ({"logit_bias": []}, "logit_bias"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1"),
    ({"logit_bias": {str(i): 0 for i in range(2000)}}, "logit_bias"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"functions": [{}]}, "functions"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"store": True}, "store"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"verbosity": "low"}, "verbosity"),
    ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    ({"user": 5}, "user"),
    ({"shoal": []}, "shoal"),
    ({"shoal": {"privcy": "any"}}, "shoal.privcy"),
    ({"shoal": {"privacy": "secret"}}, "shoal.privacy"),
    ({"shoal": {"slo": {"tpot_ms": "x"}}}, "shoal.slo.tpot_ms"),
    ({"shoal": {"slo": {"ttft_ms": 0}}}, "shoal.slo.ttft_ms"),
    ({"shoal": {"slo": {"latency": 1}}}, "shoal.slo.latency"),
    ({"shoal": {"class": "tpu"}}, "shoal.class"),
    ({"shoal": {"device": 3}}, "shoal.device"),
    ({"shoal": {"priority": 1000}}, "shoal.priority"),
    ({"shoal": {"objective": "speed"}}, "shoal.objective"),
    ({"shoal": {"on_slo_miss": "cry"}}, "shoal.on_slo_miss"),
    ({"shoal": {"hedge_after": -1}}, "shoal.hedge_after"),
]


@pytest.mark.parametrize(
    ("changes", "param"), CHAT_REFUSALS, ids=[str(c)[:50] for c, _ in CHAT_REFUSALS]
)
def test_chat_refusal_names_the_parameter(changes: dict[str, Any], param: str) -> None:
    assert refused_param(parse_chat, {"model": "m", "messages": USER} | changes) == param


COMPLETION_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": ["a", 1]}, "prompt[1]"),
    ({"prompt": [1, "a"]}, "prompt[1]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": ["x"] * 65}, "prompt"),
    ({"prompt": ["x"] * 33, "n": 2}, "n"),
    ({"prompt": "x", "suffix": "y"}, "suffix"),
    ({"prompt": "x", "best_of": 2}, "best_of"),
    ({"prompt": "x", "echo": True, "logprobs": 1}, "echo"),
    ({"prompt": [1], "echo": True}, "echo"),
]


@pytest.mark.parametrize(
    ("changes", "param"), COMPLETION_REFUSALS, ids=[str(c)[:50] for c, _ in COMPLETION_REFUSALS]
)
def test_completion_refusal_names_the_parameter(changes: dict[str, Any], param: str) -> None:
    assert refused_param(parse_completion, {"model": "m"} | changes) == param


@pytest.mark.parametrize(
    "body",
    [b"", b"  ", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"a": "\xed\xa0\x80"}', b"[" * 100_000,
     b"9" * 5000],
)  # fmt: skip
def test_broken_body_is_refused(body: bytes) -> None:
    with pytest.raises(ShoalError) as caught:
        parse_body(body)
    assert caught.value.http_status == 400


def test_body_may_begin_with_a_byte_order_mark() -> None:
    assert parse_body(b'\xef\xbb\xbf{"model": "m"}') == {"model": "m"}


def test_body_over_the_limit_is_413() -> None:
    with pytest.raises(ShoalError) as caught:
        parse_body(b" " * (MAX_BODY_BYTES + 1))
    assert caught.value.http_status == 413


def test_nothing_said_is_not_refused() -> None:
    request = chat(
        tools=[], functions=None, tool_choice="none", response_format={"type": "text"},
        modalities=["text"], stop=None, temperature=None, metadata={"x": 1}, unknown_field=[1],
    )  # fmt: skip
    assert request.sampling.temperature is None
    assert request.max_tokens is None


def test_parts_are_joined_and_developer_is_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = chat(messages=[{"role": "developer", "content": parts}])
    assert request.prompts == ((Message("system", "ab"),),)


def test_newer_name_of_max_tokens_wins() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).max_tokens == 7
    assert chat(max_tokens=5.0).max_tokens == 5


def test_completion_defaults_to_sixteen_tokens() -> None:
    assert parse_completion({"model": "m", "prompt": "x"}).max_tokens == 16


def test_wire_messages_carry_all_that_was_asked() -> None:
    request = chat(
        temperature=0, top_k=-1, seed=-1, logit_bias={"5": -100}, stop="END", logprobs=True,
        top_logprobs=2, user="u",
        shoal={
            "slo": {"ttft_ms": 900, "tpot_ms": 40}, "privacy": "local_only", "class": "npu",
            "device": "d", "priority": 3, "objective": "edp", "on_slo_miss": "refuse",
            "hedge_after": 3,
        },
    )  # fmt: skip
    message = to_generate_requests(request, Origin("r", "t", b"s", 9))[0]
    assert message.sampling.HasField("temperature")
    assert message.sampling.top_k == 0
    assert message.sampling.seed == 2**64 - 1
    assert dict(message.sampling.logit_bias) == {5: -100}
    assert list(message.stop) == ["END"]
    assert message.top_logprobs == 2
    assert not message.HasField("max_tokens")
    assert (message.tenant, message.tenant_salt, message.deadline_unix_ms) == ("t", b"s", 9)
    hints = message.hints
    assert (hints.ttft_ms, hints.tpot_ms, hints.device, hints.device_class) == (900, 40, "d", "npu")
    assert hints.privacy == pb.PRIVACY_LOCAL_ONLY
    assert hints.objective == pb.OBJECTIVE_EDP
    assert hints.on_slo_miss == pb.SLO_MISS_REFUSE
    assert hints.hedge_after == 3
    assert hints.priority == 3


def test_each_choice_is_a_request_with_its_own_id_and_seed() -> None:
    request = parse_completion({"model": "m", "prompt": ["a", [1, 2]], "n": 2, "seed": 10})
    messages = to_generate_requests(request, Origin("r"))
    assert [m.request_id for m in messages] == ["r", "r-1", "r-2", "r-3"]
    assert [m.sampling.seed for m in messages] == [10, 11, 10, 11]
    assert [m.WhichOneof("prompt") for m in messages] == ["text", "text", "tokens", "tokens"]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    ["model", "messages", "prompt", "stop", "n", "temperature", "top_p", "top_k", "seed", "stream",
     "stream_options", "logprobs", "top_logprobs", "logit_bias", "max_tokens", "tools", "user",
     "response_format", "shoal", "echo", "modalities", "best_of"]
)  # fmt: skip
MESSAGE = st.fixed_dictionaries(
    {},
    optional={"role": JSON_VALUES | st.just("user"), "content": JSON_VALUES, "name": JSON_VALUES},
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(FIELDS, JSON_VALUES, max_size=8),
    st.none() | st.lists(MESSAGE, max_size=3),
    st.booleans(),
)
def test_random_json_is_served_or_refused_never_a_crash(
    data: dict[str, Any], messages: list[Any] | None, named: bool
) -> None:
    if named:
        data["model"] = "m"
    if messages is not None:
        data["messages"] = messages
    for parse in (parse_chat, parse_completion):
        try:
            request = parse(parse_body(json.dumps(data).encode()))
        except ShoalError as error:
            assert 400 <= error.http_status < 500  # noqa: PT017 - either end is right
            json.dumps(error.message).encode()
        else:
            for message in to_generate_requests(request, Origin("r")):
                message.SerializeToString()
