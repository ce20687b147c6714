"""Malformed requests get a 4xx that names the parameter, never a 5xx."""

from __future__ import annotations

import json

import pytest

from tests.harness.fleet import Fleet

USER = [{"role": "user", "content": "hi"}]

CASES: list[tuple[str, dict[str, object], str]] = [
    ("empty messages", {"messages": []}, "messages"),
    ("no messages", {}, "messages"),
    ("null messages", {"messages": None}, "messages"),
    ("null content", {"messages": [{"role": "user", "content": None}]}, "messages"),
    ("number as content", {"messages": [{"role": "user", "content": 3}]}, "messages"),
    ("unknown role", {"messages": [{"role": "king", "content": "hi"}]}, "messages"),
    ("temperature as text", {"messages": USER, "temperature": "hot"}, "temperature"),
    ("negative temperature", {"messages": USER, "temperature": -1}, "temperature"),
    ("top_p above one", {"messages": USER, "top_p": 2}, "top_p"),
    ("zero max_tokens", {"messages": USER, "max_tokens": 0}, "max_tokens"),
    ("huge max_tokens", {"messages": USER, "max_tokens": 10**9}, "max_tokens"),
    ("many stop strings", {"messages": USER, "stop": ["x"] * 100_000}, "stop"),
    ("bad logit_bias", {"messages": USER, "logit_bias": {"a": 1}}, "logit_bias"),
    ("tools", {"messages": USER, "tools": [{"type": "function"}]}, "tools"),
    ("n of two", {"messages": USER, "n": 0}, "n"),
    ("model as number", {"messages": USER, "model": 7}, "model"),
    ("unknown privacy", {"messages": USER, "shoal": {"privacy": "secret"}}, "shoal.privacy"),
    ("unknown device", {"messages": USER, "shoal": {"device": "nobody"}}, "shoal.device"),
    ("bias out of the vocabulary", {"messages": USER, "logit_bias": {"49152": 1}}, "logit_bias"),
    ("text as slo", {"messages": USER, "shoal": {"slo": {"ttft_ms": "x"}}}, "shoal.slo.ttft_ms"),
]


@pytest.mark.parametrize(("changes", "param"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_refused_by_name(fleet: Fleet, changes: dict[str, object], param: str) -> None:
    with fleet.http() as http:
        answer = http.post(
            "/v1/chat/completions", json={"model": "smollm2-135m-instruct"} | changes
        )
    assert 400 <= answer.status_code < 500, answer.text
    assert str(answer.json()["error"]["param"]).startswith(param)
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"messages": "\xed\xa0\x80"}', b"[" * 50_000,
     b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}', b'{"a": NaN}'],
)  # fmt: skip
def test_broken_bodies(fleet: Fleet, body: bytes) -> None:
    with fleet.http() as http:
        answer = http.post(
            "/v1/chat/completions", content=body, headers={"Content-Type": "application/json"}
        )
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["error"]["message"]


def test_huge_body(fleet: Fleet) -> None:
    text = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 20_000_000}]})
    with fleet.http() as http:
        answer = http.post("/v1/chat/completions", content=text)
    assert answer.status_code == 413


def test_prompt_longer_than_the_context_is_refused(fleet: Fleet) -> None:
    with fleet.http() as http:
        answer = http.post(
            "/v1/completions", json={"model": fleet.model, "prompt": [200] * 5000, "max_tokens": 1}
        )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
