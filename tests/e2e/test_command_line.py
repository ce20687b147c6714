"""The command line against a real fleet: what people type after `make run`."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.harness.fleet import SHOAL, Fleet, wait_for
from tests.harness.models import smollm2_file


def test_chat_answers_and_explain_tells_why(fleet: Fleet) -> None:
    reply = fleet.json("chat", "Say hello.", "--max-tokens", "8", "--temperature", "0")
    assert reply["text"]
    assert reply["tier"] == "edge"
    assert reply["usage"]["completion_tokens"] <= 8
    record = fleet.json("explain", reply["request_id"])
    assert record["outcome"] == "finished"
    chosen = [each for each in record["candidates"] if each["rejected"] is None]
    assert [each["device_name"] for each in chosen] == [reply["device"]]
    assert chosen[0]["prediction"]["ttft_ms"] > 0
    assert record["actual"]["completion_tokens"] == reply["usage"]["completion_tokens"]
    assert reply["device"] in fleet.shoal("explain", reply["request_id"]).stdout


def test_tour_shows_an_answer_and_how_to_go_on(fleet: Fleet) -> None:
    done = fleet.shoal("tour")
    assert "curl" in done.stdout
    assert f"{fleet.url}/v1" in done.stdout
    assert "device local-1" in done.stderr


def test_status_devices_and_models_agree(fleet: Fleet) -> None:
    status = fleet.status()
    (device,) = [each for each in status["devices"] if each["name"] == "local-1"]
    assert device["state"] == "READY"
    assert device["class"] in ("x86_cpu", "arm_cpu")
    assert device["emulated"] is False
    assert fleet.model in [model["name"] for model in device["models"]]
    assert fleet.model in [model["id"] for model in fleet.json("models")["models"]]
    assert "local-1" in fleet.shoal("devices", "list").stdout
    assert fleet.model in fleet.shoal("models", "list").stdout


def test_unknown_model_is_not_found(fleet: Fleet) -> None:
    done = fleet.shoal("chat", "hi", "--model", "no-such-model", check=False)
    assert done.returncode == 8
    assert "no-such-model" in done.stderr


def test_doctor_finds_a_healthy_fleet(fleet: Fleet) -> None:
    findings = fleet.json("doctor")
    assert findings["ok"], findings
    names = {finding["name"] for finding in findings["findings"]}
    assert {"python", "engine self-test", "redis state", "ray serve", "port"} <= names


@pytest.fixture
def guest(fleet: Fleet) -> Iterator[subprocess.Popen[bytes]]:
    """A second device that joins as any other would."""
    token = fleet.json("token", "create")["token"]
    process = subprocess.Popen(
        [
            *(str(SHOAL), "agent", "run", "--join", fleet.url, "--token", token),
            *("--name", "guest", "--class", "npu", "--model", str(smollm2_file())),
            *("--slots", "1", "--context", "512"),
        ],
        env=fleet.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield process
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    process.wait(30)


def device_state(fleet: Fleet, name: str) -> dict[str, object]:
    found = [each for each in fleet.status()["devices"] if each["name"] == name]
    return found[0] if found else {"state": "", "models": []}


def serves(fleet: Fleet, name: str) -> bool:
    return any(model["state"] == "READY" for model in device_state(fleet, name)["models"])  # type: ignore[attr-defined]


def test_guest_joins_by_token_is_shown_as_emulated_and_can_be_removed(
    fleet: Fleet, guest: subprocess.Popen[bytes]
) -> None:
    wait_for("guest serves", lambda: serves(fleet, "guest"), timeout_s=120)
    shown = device_state(fleet, "guest")
    assert shown["class"] == "npu"
    assert shown["emulated"] is True
    # The command line became the agent: no second process carries its weight.
    with open(f"/proc/{guest.pid}/cmdline", "rb") as command_line:
        command = command_line.read()
    assert b"agent.app" in command
    assert b"shoal-join" not in command, "the token can be read by other users"
    assert os.path.exists(fleet.home / "agents" / "guest" / "identity.json")

    fleet.shoal("devices", "remove", "guest")
    assert guest.wait(30) == 20
    assert fleet.shoal("devices", "remove", "nobody", check=False).returncode == 8


def test_json_errors_are_json(fleet: Fleet) -> None:
    done = fleet.shoal("explain", "no-such-request", "--json", check=False)
    assert done.returncode == 8
    assert json.loads(done.stdout)["error"]["exit_code"] == 8
