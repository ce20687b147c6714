"""A model that only the fleet's own cloud nodes have: from zero replicas and back."""

from __future__ import annotations

import psutil

from tests.e2e.test_listening import is_loopback, of_each
from tests.harness.fleet import Fleet, wait_for

BODY = {
    "model": "whale",
    "max_tokens": 4,
    "messages": [{"role": "user", "content": "The capital of France is"}],
}


def replicas(fleet: Fleet) -> list[psutil.Process]:
    """Processes of the hosted model: Serve's replica and the engine."""
    seen = of_each(fleet, lambda process: (process, " ".join(process.cmdline())))
    return [process for process, line in seen if "whale" in line]


def test_hosted_model_answers_from_zero_replicas_and_goes_back_to_zero(fleet: Fleet) -> None:
    assert replicas(fleet) == []
    with fleet.http() as client:  # of a tenant without a policy
        assert client.post("/v1/chat/completions", json=BODY).status_code == 403
    with fleet.http((fleet.home / "keys/default.key").read_text()) as client:
        answer = client.post("/v1/chat/completions", json=BODY)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-shoal-tier"] == "cloud"
        assert answer.json()["choices"][0]["message"]["content"]
        assert client.post("/hosted/whale/v1/chat/completions", json=BODY).status_code == 401
    running = replicas(fleet)
    assert len(running) == 2
    for process in running:
        for connection in process.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                assert is_loopback(connection.laddr.ip), connection
    wait_for("the last replica's end", lambda: replicas(fleet) == [], timeout_s=120)
