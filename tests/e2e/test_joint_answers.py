"""Two real models for one answer, through the gateway: drafts for a cloud node, and a cascade.

A fleet of its own: a small device, one with a larger variant of the model, and a cloud node.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.requantise import requantise
from shoal.model_names import catalogue_name
from tests.harness.cloud_node import running_node
from tests.harness.fleet import SHOAL, Fleet, wait_for
from tests.harness.models import smollm2_file
from tests.harness.ports import free_port

SMALL = catalogue_name(smollm2_file())
LARGER, DRAFTED, CASCADE = "larger", "drafted", "careful"
QUESTIONS = (
    "Name three fish.", "What is the capital of France?", "Why is the sky blue?",
    "Write a short poem about rain.", "What is seven times eight?", "Who wrote Hamlet?",
)  # fmt: skip
NODE_FLAGS = ("--slots", "2", "--context", "512", "--no-prefix-cache")


@pytest.fixture(scope="module")
def larger_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return requantise(tmp_path_factory.mktemp("models") / f"{LARGER}.gguf", "q8_0")


@pytest.fixture(scope="module")
def node_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def joint(tmp_path_factory: pytest.TempPathFactory, node_port: int) -> Iterator[Fleet]:
    config = tmp_path_factory.mktemp("config") / "cloud.toml"
    config.write_text(
        f'[[drafted]]\nname = "{DRAFTED}"\ndraft = "{SMALL}"\n'
        f'verifier = "127.0.0.1:{node_port}"\n'
        f'[[cascade]]\nname = "{CASCADE}"\nedge = "{SMALL}"\nescalate_to = ["{LARGER}"]\n'
    )
    options = ("--slots", "2", "--context", "512", "--cloud-config", str(config))
    fleet = Fleet("--model", str(smollm2_file()), *options)
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def larger_device(joint: Fleet, larger_file: Path) -> Iterator[None]:
    token = joint.json("token", "create")["token"]
    command = [str(SHOAL), "agent", "run", "--join", joint.url, "--token", token]
    command += ["--name", "bigger-box", "--model", str(larger_file)]
    command += ["--slots", "2", "--context", "512"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, env=joint.env, stdout=quiet, stderr=quiet)
    try:
        wait_for("the larger model", lambda: LARGER in served(joint), timeout_s=240)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def served(fleet: Fleet) -> set[str]:
    return {
        model["name"]
        for device in fleet.status()["devices"]
        for model in device["models"]
        if model["state"] == "READY"
    }


@contextmanager
def asking(fleet: Fleet) -> Iterator[httpx.Client]:
    """As the first tenant, whose policy lets requests out."""
    with fleet.http((fleet.home / "keys/default.key").read_text()) as client:
        yield client


def ask(client: httpx.Client, model: str, question: str, **shoal: Any) -> dict[str, Any]:
    body = {
        "model": model, "temperature": 0, "max_tokens": 24, "shoal": shoal,
        "messages": [{"role": "user", "content": question}],
    }  # fmt: skip
    reply = client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def record_of(fleet: Fleet, answer: dict[str, Any], num_attempts: int = 1) -> dict[str, Any]:
    """Its decision record, which is written a moment after the answer."""
    found: dict[str, Any] = {}

    def whole() -> bool:
        done = fleet.shoal("explain", answer["id"], "--json", check=False)
        if done.returncode == 0:
            found.update(fleet.json("explain", answer["id"]))
        return len(found.get("attempts", ())) == num_attempts

    wait_for("the decision record", whole, timeout_s=60)
    return found


def test_drafted_text_through_the_gateway_is_the_targets_own_and_explained(
    joint: Fleet, larger_device: None, larger_file: Path, node_port: int
) -> None:
    with asking(joint) as client:
        alone = [text_of(ask(client, LARGER, question)) for question in QUESTIONS]
        assert alone != [text_of(ask(client, SMALL, question)) for question in QUESTIONS]
        node = running_node(joint.home, larger_file, *NODE_FLAGS, name=DRAFTED, port=node_port)
        with node:
            drafted = [ask(client, DRAFTED, question) for question in QUESTIONS]
        assert [text_of(each) for each in drafted] == alone
        # Nothing is known of the node before the first request, so that it is drafted.
        shoal = drafted[0]["shoal"]
        told, record = shoal["speculative"], record_of(joint, drafted[0])
        assert (shoal["mode"], told["mode"]) == ("speculative", "speculative")
        assert (told["target"], told["fallback"]) == (DRAFTED, "")
        assert told["rounds"] > 0
        assert told["target_passes"] > 0
        assert 0 <= told["acceptance_rate"] <= 1
        counted = {tier: use["completion"] for tier, use in shoal["tokens_by_tier"].items()}
        assert sum(counted.values()) == drafted[0]["usage"]["completion_tokens"]
        assert record["mode"] == "speculative"
        assert record["actual"]["speculative"] == told
        assert record["tokens_by_tier"] == shoal["tokens_by_tier"]
        lines = joint.shoal("explain", drafted[0]["id"]).stdout
        assert f"mode      speculative for {DRAFTED}" in lines

        # The node is gone: the device goes on with its own model, and says so.
        fallen = ask(client, DRAFTED, QUESTIONS[0])
        assert text_of(fallen) == text_of(ask(client, SMALL, QUESTIONS[0]))
        assert fallen["shoal"]["speculative"]["mode"] == "edge_alone"
        assert fallen["shoal"]["speculative"]["fallback"]

        body = {"model": DRAFTED, "prompt": "x", "shoal": {"privacy": "local_only"}}
        refused = client.post("/v1/completions", json=body)
        assert refused.status_code == 403
        assert refused.json()["error"]["param"] == "shoal.privacy"


@pytest.mark.usefixtures("larger_device")
def test_unsure_answer_is_handed_over_to_the_larger_device_and_both_are_counted(
    joint: Fleet,
) -> None:
    with asking(joint) as client:
        question = QUESTIONS[0]
        alone = text_of(ask(client, LARGER, question))
        # No answer is as sure; a local request may go on to a device.
        handed = ask(client, CASCADE, question, privacy="local_only", cascade={"threshold": 1.0})
        assert text_of(handed) == alone
        shoal = handed["shoal"]
        told = shoal["cascade"]
        assert (told["decision"], told["target_model"]) == ("escalated", LARGER)
        first, second = told["legs"]
        assert (first["model"], second["model"]) == (SMALL, LARGER)
        assert (first["device"], second["device"]) == ("local-1", "bigger-box")
        assert shoal["device"] == "bigger-box"
        for leg in (first, second):
            assert (leg["tier"], leg["outcome"]) == ("edge", "finished")
            assert leg["joules"] > 0
        assert second["completion_tokens"] == handed["usage"]["completion_tokens"]
        assert shoal["tokens_by_tier"]["edge"] == {
            part: first[f"{part}_tokens"] + second[f"{part}_tokens"]
            for part in ("prompt", "completion")
        }
        assert shoal["joules_by_tier"]["edge"] == pytest.approx(
            first["joules"] + second["joules"], abs=1e-3
        )
        record = record_of(joint, handed, num_attempts=2)
        assert [each["device_name"] for each in record["attempts"]] == ["local-1", "bigger-box"]
        assert record["cascade"] == told
        # What was predicted is of the device whose answer was given.
        chosen = [each["device_name"] for each in record["candidates"] if not each["rejected"]]
        assert chosen == ["bigger-box"]
        lines = joint.shoal("explain", handed["id"]).stdout
        assert f"leg       {LARGER} on bigger-box (edge): finished" in lines

        stands = ask(client, CASCADE, question, cascade={"threshold": 0.0})
        assert text_of(stands) == text_of(ask(client, SMALL, question))
        assert [leg["device"] for leg in stands["shoal"]["cascade"]["legs"]] == ["local-1"]
