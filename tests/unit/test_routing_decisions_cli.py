import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from orchestrator.routing.record import Actual, Attempt, DecisionRecord
from shoal.cli.app import app
from shoal.cli.decisions import placed_on
from shoal.cli.explain import attempt_end
from shoal.cli.output import answer
from tests.unit.test_routing_router import ALL_CLASSES, fleet, route


def record(request_id="r1"):
    decision = route(fleet(*ALL_CLASSES), request_id=request_id)
    chosen = decision.chosen
    attempt = Attempt(chosen.device_id, chosen.device_name, 5)
    done = DecisionRecord(decision).with_attempt(attempt)
    return done.ended("finished", 9, Actual(100, 32, 0, 1.0, 222.0, 33.0))


@pytest.fixture
def gateway(monkeypatch):
    """A gateway's listing of two records; what was asked is in `asked`."""
    asked = []
    listing = [json.loads(record(name).to_json()) for name in ("r2", "r1")]
    listing[0] |= {"attempts": [], "actual": None, "outcome": "overloaded"}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["authorization"]))
            body = json.dumps({"decisions": [] if "nobody" in self.path else listing}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("SHOAL_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("SHOAL_API_KEY", "an-admin-key")
        monkeypatch.setattr(answer, "width", 200)
        yield asked
        server.shutdown()
        thread.join()


def test_who_answered_is_named_and_not_who_was_asked_last():
    edge = {"device_id": "d1", "device_name": "pi", "failed": ""}
    cloud = {"device_id": "cloud:above", "device_name": "above", "failed": ""}
    assert placed_on({"tier": "edge", "attempts": [edge, cloud]}) == "pi"
    assert placed_on({"tier": "cloud", "attempts": [edge, cloud]}) == "above"
    stopped = edge | {"failed": "cancelled"}
    again = edge | {"device_name": "bigger"}
    assert placed_on({"tier": "edge", "attempts": [again, stopped, cloud]}) == "bigger"
    assert placed_on({"tier": "edge", "attempts": [stopped]}) == "pi"


def test_attempt_that_was_given_up_did_not_serve():
    ends = [attempt_end(failed) for failed in ("", "cancelled", "low_confidence", "device_lost")]
    assert ends == [
        "served",
        "not used: cancelled",
        "not used: low_confidence",
        "failed: device_lost",
    ]


def decisions(*arguments):
    return CliRunner().invoke(app, ["decisions", *arguments])


def test_decisions_are_listed_with_device_and_figures(gateway):
    result = decisions()
    assert result.exit_code == 0
    refused, served = result.stdout.splitlines()[1:]
    assert ("r2" in refused, "overloaded" in refused) == (True, True)
    for shown in ("r1", "arm_cpu", "finished", "222.0 ms", "33.0 ms"):
        assert shown in served


def test_filters_are_passed_on_to_the_gateway(gateway):
    decisions("--device", "kitchen pi", "--limit", "7")
    assert gateway == [("/shoal/v1/decisions?limit=7&device=kitchen+pi", "Bearer an-admin-key")]


def test_json_is_what_the_gateway_answers(gateway):
    listing = json.loads(decisions("--json").stdout)
    assert [each["request_id"] for each in listing["decisions"]] == ["r2", "r1"]


def test_no_decisions_are_said_to_be_none(gateway):
    assert "No decisions are recorded of nobody" in decisions("--device", "nobody").stdout
