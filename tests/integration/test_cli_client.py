"""The command line's HTTP client against a real server: each failure has its exit code."""

import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from shoal.cli.client import Endpoint, GatewayClient
from shoal.cli.exit_codes import CliError, ExitCode

STREAM = (
    b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
    b": a comment\n\n"
    b'data: {"choices": [], "usage": {"completion_tokens": 1}}\n\n'
    b"data: [DONE]\n\n"
)
BROKEN_STREAM = b'data: {"choices": []}\n\ndata: {"error": {"message": "device lost"}}\n\n'


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers with the status that the path names."""

    def do_GET(self) -> None:
        status = int(self.path.strip("/"))
        body = json.dumps({"error": {"message": f"answer {status}"}}).encode()
        self._send(status, body, {"Retry-After": "7"} if status == 429 else {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/stream"):
            self._send(
                200, STREAM if self.path == "/stream" else BROKEN_STREAM, {"x-shoal-tier": "edge"}
            )
        else:
            self.do_GET()

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def client() -> Iterator[GatewayClient]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield GatewayClient(Endpoint(f"http://127.0.0.1:{server.server_port}", "k"))
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, ExitCode.REFUSED),
        (401, ExitCode.NOT_ALLOWED),
        (403, ExitCode.NOT_ALLOWED),
        (404, ExitCode.NOT_FOUND),
        (413, ExitCode.REFUSED),
        (429, ExitCode.BUSY),
        (500, ExitCode.FAILED),
        (503, ExitCode.BUSY),
    ],
)
def test_http_status_becomes_an_exit_code(
    client: GatewayClient, status: int, code: ExitCode
) -> None:
    with pytest.raises(CliError, match=f"answer {status}") as raised:
        client.get(f"/{status}")
    assert raised.value.code is code


def test_retry_after_is_passed_on(client: GatewayClient) -> None:
    with pytest.raises(CliError) as raised:
        client.post("/429")
    assert "7 s" in raised.value.remedy


def test_stream_yields_headers_then_events(client: GatewayClient) -> None:
    first, *events = client.stream("/stream", {})
    assert first["headers"]["x-shoal-tier"] == "edge"
    assert [event["choices"] for event in events] == [[{"delta": {"content": "a"}}], []]


def test_error_in_the_stream_ends_it(client: GatewayClient) -> None:
    with pytest.raises(CliError, match="device lost"):
        list(client.stream("/stream-broken", {}))


def test_refusal_before_the_stream_is_read(client: GatewayClient) -> None:
    with pytest.raises(CliError, match="answer 429") as raised:
        list(client.stream("/429", {}))
    assert raised.value.code is ExitCode.BUSY


def test_nobody_there_is_unreachable() -> None:
    with pytest.raises(CliError) as raised:
        GatewayClient(Endpoint("http://127.0.0.1:9", "k")).get("/200")
    assert raised.value.code is ExitCode.UNREACHABLE
