"""What `shoal chat` shows of an answer that a cascade took back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from shoal.cli import chat
from shoal.cli.app import app

HEADERS = {"x-shoal-request-id": "chatcmpl-1", "x-shoal-device": "local-1", "x-shoal-tier": "edge"}
LAST = {
    "tier": "cloud",
    "device": "",
    "reason": "",
    "cascade": {"decision": "escalated", "reason": "low_confidence"},
}


def piece(text: str, **more: object) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}, "finish_reason": None}], **more}


class Gateway:
    """Streams an edge's answer, takes it back and streams the cloud's."""

    def __init__(self, *, restarts: bool) -> None:
        self._restarts = restarts

    def stream(self, _path: str, _body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"headers": HEADERS}
        yield piece("A wild")
        yield piece(" guess")
        if self._restarts:
            told = {"index": 0, "reason": "low_confidence", "discarded_tokens": 3}
            yield {
                "choices": [{"delta": {}, "finish_reason": None}],
                "shoal": {"restart": told},
            }
            yield piece("From")
            yield piece(" above")
        yield {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        last = LAST if self._restarts else {"tier": "edge", "device": "local-1", "reason": "near"}
        yield {"choices": [], "usage": {"completion_tokens": 2}, "shoal": last}


@pytest.fixture
def restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "user_client", lambda: Gateway(restarts=True))


ASK = ["chat", "Why?", "--model", "auto"]


@pytest.mark.usefixtures("restarts")
def test_what_a_cascade_took_back_is_no_part_of_the_answer() -> None:
    ended = CliRunner().invoke(app, ASK)
    assert ended.exit_code == 0, ended.output
    assert ended.stdout == "From above\n"
    assert "That did not stand (low_confidence): the answer begins anew." in ended.stderr
    assert "device - · tier cloud" in ended.stderr
    assert "decision: cascade: escalated, low_confidence" in ended.stderr


@pytest.mark.usefixtures("restarts")
def test_json_has_the_answer_that_stands_and_who_gave_it() -> None:
    ended = CliRunner().invoke(app, [*ASK, "--json"])
    document = json.loads(ended.stdout)
    assert (document["text"], document["tier"], document["device"]) == ("From above", "cloud", "")
    assert document["finish_reason"] == "stop"
    assert document["shoal"] == LAST
    assert "begins anew" not in ended.stderr


@pytest.mark.usefixtures("restarts")
def test_a_terminal_shows_text_as_it_comes_and_the_new_one_on_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chat, "answer", Console(force_terminal=True, width=80))
    chat.chat("Why?", model="auto")
    assert capsys.readouterr().out == "A wild guess\nFrom above\n"


def test_an_answer_that_stands_is_told_with_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "user_client", lambda: Gateway(restarts=False))
    ended = CliRunner().invoke(app, ASK)
    assert ended.stdout == "A wild guess\n"
    assert "device local-1 · tier edge" in ended.stderr
    assert "decision: near" in ended.stderr
