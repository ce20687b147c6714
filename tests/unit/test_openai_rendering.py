"""Streams and bodies in the exact shape that OpenAI's clients parse."""

from __future__ import annotations

import json
import math
from typing import Any

from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from shoal.errors import Foreseen, Reason, ShoalError
from shoal.openai.answer import Choice, answer_body
from shoal.openai.chat import parse_chat
from shoal.openai.completion import parse_completion
from shoal.openai.error import error_body, error_event, retry_after_s
from shoal.openai.outcome import Outcome
from shoal.openai.request import TextRequest
from shoal.openai.sse import DONE, ResponseHead, StreamRenderer
from shoal.v1 import inference_pb2 as pb

HEAD = ResponseHead("chatcmpl-1", 'm"odel', 1_700_000_000)
TEXT = 'a "quoted" \n \u2028 wörd 🐟'


def chat(**changes: Any) -> TextRequest:
    return parse_chat({"model": "m", "messages": [{"role": "user", "content": "hi"}]} | changes)


def ended(request_id: str = "chatcmpl-1", reason: int = pb.Finished.REASON_STOP) -> Outcome:
    outcome = Outcome(request_id, "edge")
    usage = pb.Usage(prompt_tokens=10, completion_tokens=3, cached_tokens=8)
    outcome.take(pb.SequenceUpdate(placed=pb.Placed(device_name="d", predicted_ttft_ms=5)))
    outcome.take(pb.SequenceUpdate(finished=pb.Finished(reason=reason, usage=usage)))
    return outcome


def events(text: str) -> list[dict[str, Any]]:
    parts = text.removesuffix(DONE.decode()).split("\n\n")
    return [json.loads(part.removeprefix("data: ")) for part in parts if part]


def test_chunks_parse_as_openais_own_type_and_text_survives() -> None:
    renderer = StreamRenderer(HEAD, chat(stream=True))
    text = renderer.begin(0) + renderer.text(0, TEXT) + renderer.finish(0, [ended()])
    assert text.isascii()
    chunks = [ChatCompletionChunk.model_validate(event) for event in events(text)]
    assert {chunk.id for chunk in chunks} == {"chatcmpl-1"}
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant", None, None]
    assert chunks[1].choices[0].delta.content == TEXT
    assert chunks[2].choices[0].finish_reason == "stop"
    assert chunks[0].model == 'm"odel'
    assert renderer.end([ended()]) == DONE


def test_usage_chunk_has_no_choices_and_the_others_a_null_usage() -> None:
    request = chat(stream=True, stream_options={"include_usage": True})
    renderer = StreamRenderer(HEAD, request)
    text = renderer.begin(0) + renderer.text(0, "x") + renderer.finish(0, [ended()])
    chunks = events(text + renderer.end([ended()]).decode())
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 3
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 13
    assert chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 8
    assert "shoal" not in chunks[-2]
    assert chunks[-1]["shoal"]["device"] == "d"


def test_only_the_last_choice_to_finish_carries_the_extension() -> None:
    renderer = StreamRenderer(HEAD, chat(stream=True, n=2))
    outcomes = [ended(), ended("chatcmpl-1-1", pb.Finished.REASON_LENGTH)]
    first, second = events(renderer.finish(1, outcomes) + renderer.finish(0, outcomes))
    assert (first["choices"][0]["index"], first["choices"][0]["finish_reason"]) == (1, "length")
    assert "shoal" not in first
    assert [each["request_id"] for each in second["shoal"]["choices"]] == [
        "chatcmpl-1", "chatcmpl-1-1",
    ]  # fmt: skip


def test_logprobs_in_chunks_are_finite_and_carry_bytes() -> None:
    renderer = StreamRenderer(HEAD, chat(stream=True, logprobs=True, top_logprobs=1))
    top = [pb.TokenLogprob(text=b"\xf0\x9f", logprob=-math.inf)]
    delta = pb.Delta(text="x", logprobs=[pb.TokenLogprob(text=b"x", logprob=-0.5, top=top)])
    chunk = ChatCompletionChunk.model_validate(events(renderer.delta(0, delta))[0])
    logprobs = chunk.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert logprobs.content[0].logprob == -0.5
    assert logprobs.content[0].top_logprobs[0].bytes == [0xF0, 0x9F]
    assert logprobs.content[0].top_logprobs[0].logprob == -9999.0


def test_delta_that_says_nothing_renders_nothing() -> None:
    assert StreamRenderer(HEAD, chat(stream=True)).delta(0, pb.Delta(tokens=[5])) == ""


def test_completion_chunks_echo_the_prompt_first() -> None:
    request = parse_completion({"model": "m", "prompt": "say ", "echo": True, "stream": True})
    renderer = StreamRenderer(HEAD, request)
    text = renderer.begin(0, "say ") + renderer.text(0, "hi") + renderer.finish(0, [ended()])
    choices = [chunk["choices"][0] for chunk in events(text)]
    assert [choice["text"] for choice in choices] == ["say ", "hi", ""]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "stop"]


def test_bodies_parse_as_openais_own_types() -> None:
    choice = Choice(ended())
    choice.take(pb.SequenceUpdate(delta=pb.Delta(text="he")))
    choice.take(pb.SequenceUpdate(delta=pb.Delta(text="llo")))
    answer = ChatCompletion.model_validate(answer_body(HEAD, chat(), [choice]))
    assert answer.choices[0].message.content == "hello"
    assert answer.choices[0].logprobs is None
    request = parse_completion({"model": "m", "prompt": "say ", "logprobs": 1})
    choice = Choice(ended())
    for word in ("he", "llo"):
        logprob = pb.TokenLogprob(text=word.encode(), logprob=-1)
        choice.take(pb.SequenceUpdate(delta=pb.Delta(text=word, logprobs=[logprob])))
    completion = Completion.model_validate(answer_body(HEAD, request, [choice]))
    assert completion.choices[0].logprobs is not None
    assert completion.choices[0].logprobs.text_offset == [0, 2]


def test_refusal_that_rests_on_a_prediction_tells_it() -> None:
    foreseen = Foreseen(1234.56, 20.123)
    error = ShoalError(Reason.SLO_UNREACHABLE, "late", retry_after_ms=900, foreseen=foreseen)
    assert error_body(ShoalError.from_wire(error.to_wire()))["error"]["shoal"] == {
        "predicted": {"ttft_ms": 1234.6, "tpot_ms": 20.12}, "retry_after_ms": 900,
    }  # fmt: skip


def test_errors_have_openais_shape_and_a_retry_after() -> None:
    error = ShoalError(Reason.OVERLOADED, "full", retry_after_ms=1200)
    assert error_body(error)["error"] == {
        "message": "full", "type": "rate_limit_error", "param": None, "code": "overloaded",
    }  # fmt: skip
    assert retry_after_s(error) == 2
    assert retry_after_s(ShoalError(Reason.NO_DEVICE, "x")) == 1
    assert retry_after_s(ShoalError(Reason.INVALID_ARGUMENT, "x")) is None
    assert json.loads(error_event(error).removeprefix(b"data: "))["error"]["code"] == "overloaded"


def test_drafted_answers_name_both_tiers_and_the_target() -> None:
    outcome = Outcome("chatcmpl-1", "edge")
    told = pb.Speculated(
        mode="speculative", target="big", drafted_tokens=8, accepted_tokens=6,
        tokens_by_tier={"edge": 6, "cloud": 3},
    )  # fmt: skip
    usage = pb.Usage(prompt_tokens=10, completion_tokens=9)
    outcome.take(pb.SequenceUpdate(finished=pb.Finished(usage=usage, speculated=told)))
    shoal = outcome.extension()
    assert shoal["mode"] == "speculative"
    assert shoal["tokens_by_tier"] == {
        "cloud": {"prompt": 10, "completion": 3},
        "edge": {"prompt": 10, "completion": 6},
    }
    assert (shoal["speculative"]["target"], shoal["speculative"]["acceptance_rate"]) == (
        "big",
        0.75,
    )
