"""What `shoal models add` sends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from shoal.cli import models
from shoal.cli.app import app


class Gateway:
    """Takes down what is sent; every intake has failed."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def post(self, _path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.sent.append(body)
        return {"stage": "failed", "failure": f"{body.get('source', '')[:9]}: is none"}


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Gateway:
    gateway = Gateway()
    monkeypatch.setattr(models, "admin_client", lambda: gateway)
    return gateway


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_a_source_that_is_too_long_for_a_path_is_the_orchestrators_to_refuse(
    gateway: Gateway,
) -> None:
    ended = run("models", "add", "x" * 5000)
    assert isinstance(ended.exception, SystemExit)
    assert ended.exit_code == 9
    assert gateway.sent[0]["source"] == "x" * 5000


def test_what_lies_here_is_sent_with_its_whole_path(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("folder").mkdir()
    for source in ("pipe", "folder", "pip:package:FILE"):
        run("models", "add", source)
    sent = [body["source"] for body in gateway.sent]
    assert sent == [str(tmp_path / "pipe"), str(tmp_path / "folder"), "pip:package:FILE"]
