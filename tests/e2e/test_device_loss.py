"""Engines and agents die; the fleet notices, answers, and takes them back once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.harness.fleet import Fleet, wait_for
from tests.harness.models import smollm2_file


@pytest.fixture(scope="module")
def pair() -> Iterator[Fleet]:
    running = Fleet(
        "--agents", "2", "--model", str(smollm2_file()), "--slots", "4", "--context", "1024"
    )
    yield running
    running.close()


def processes(fleet: Fleet, module: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if module in process.cmdline() and process.environ().get("SHOAL_HOME") == str(
                fleet.home
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def states(fleet: Fleet) -> list[str]:
    return sorted(device["state"] for device in fleet.status()["devices"])


def serving(fleet: Fleet) -> int:
    """Devices that could be sent a request now."""
    return sum(
        device["state"] == "READY" and any(m["state"] == "READY" for m in device["models"])
        for device in fleet.status()["devices"]
    )


def ask(fleet: Fleet, **extension: object) -> tuple[int, str]:
    with fleet.http() as http:
        answer = http.post(
            "/v1/chat/completions",
            json={
                "model": "smollm2-135m-instruct", "max_tokens": 4, "shoal": extension,
                "messages": [{"role": "user", "content": "hi"}],
            },
        )  # fmt: skip
    return answer.status_code, answer.headers.get("x-shoal-device", "")


def test_killed_engine_is_replaced_and_the_agent_lives(pair: Fleet) -> None:
    agents = {p.pid for p in processes(pair, "agent.app")}
    engine = processes(pair, "agent.llama.serve")[0]
    os.kill(engine.pid, signal.SIGKILL)
    assert ask(pair)[0] == 200
    wait_for(
        "the engine is back",
        lambda: len(processes(pair, "agent.llama.serve")) == 2 and ask(pair)[0] == 200,
        timeout_s=15,
    )
    wait_for("both serve", lambda: serving(pair) == 2, timeout_s=60)
    assert {p.pid for p in processes(pair, "agent.app")} == agents


def test_killed_agent_gets_no_request_and_comes_back_once(pair: Fleet) -> None:
    names = {device["name"] for device in pair.status()["devices"]}
    assert len(names) == 2
    wait_for("both serve", lambda: serving(pair) == 2, timeout_s=60)
    victim = processes(pair, "agent.app")[0]
    os.kill(victim.pid, signal.SIGKILL)
    wait_for("the loss is seen", lambda: states(pair) != ["READY", "READY"], timeout_s=5)
    answers = [ask(pair) for _ in range(6)]
    assert [code for code, _ in answers] == [200] * 6
    wait_for("it is back", lambda: states(pair) == ["READY", "READY"], timeout_s=40)
    assert {device["name"] for device in pair.status()["devices"]} == names


def test_drained_agent_is_not_started_again(pair: Fleet) -> None:
    wait_for("both are ready", lambda: states(pair) == ["READY", "READY"], timeout_s=60)
    pair.shoal("devices", "drain", "local-2")
    wait_for("it left", lambda: states(pair) == ["LEFT", "READY"], timeout_s=30)
    log = pair.home / "logs" / "supervisor.log"
    wait_for("its end is taken as meant", lambda: "child_left" in log.read_text(), timeout_s=10)
    assert len(processes(pair, "agent.app")) == 1
