"""The script that Serve starts as HAProxy; the real binary judges what it makes of a config."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.actors.haproxy import write_haproxy_wrapper
from tests.harness.ports import free_port

# What Serve's template leaves to correct.
CONFIG = """defaults
    mode http
    timeout connect 5s
    errorfile 503 /nowhere
frontend metrics
    bind :18001
frontend http_frontend
    bind 127.0.0.1:18000
    http-request return status 204
listen stats
  bind *:18002
  stats enable
"""


def test_config_is_corrected_once_however_often_it_is_started(tmp_path: Path) -> None:
    wrapper = write_haproxy_wrapper(tmp_path)
    config = tmp_path / "haproxy.cfg"
    config.write_text(CONFIG)
    for _ in range(2):
        done = subprocess.run(
            [wrapper, "-c", "-f", config], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in config.read_text().splitlines()]
    assert lines.count("timeout http-request 20s") == 1
    assert lines.count("http-request del-header x-session-id") == 1
    assert lines.index("http-request del-header x-session-id") < lines.index(
        "http-request return status 204"
    )
    assert [line for line in lines if line.startswith("bind")] == [
        "bind 127.0.0.1:18001",
        "bind 127.0.0.1:18000",
        "bind 127.0.0.1:18002",
    ]
    assert f"errorfile 503 {tmp_path}/503.http" in lines


def test_public_address_is_added_to_loopback_once(tmp_path: Path) -> None:
    wrapper = write_haproxy_wrapper(tmp_path, ("127.0.0.2", 18000))
    config = tmp_path / "haproxy.cfg"
    config.write_text(CONFIG)
    for _ in range(2):
        done = subprocess.run(
            [wrapper, "-c", "-f", config], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in config.read_text().splitlines()]
    assert [line for line in lines if "18000" in line] == [
        "bind 127.0.0.1:18000",
        "bind 127.0.0.2:18000",
    ]


# uvicorn's words for what its parser refuses.
UVICORN_400 = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 30\r\nconnection: close\r\n\r\nInvalid HTTP request received."
)


@contextmanager
def proxy(tmp_path: Path, reply: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """HAProxy with the corrected config before a server that always says `reply`."""
    heard: list[bytes] = []
    behind = socket.create_server(("127.0.0.1", 0))
    with behind:

        def serve() -> None:
            while True:
                try:
                    connection, _ = behind.accept()
                except OSError:
                    return
                with connection:
                    heard.append(connection.recv(65536))
                    connection.sendall(reply)

        threading.Thread(target=serve, daemon=True).start()
        port = free_port()
        config = tmp_path / "haproxy.cfg"
        config.write_text(
            "defaults\n    mode http\n    timeout connect 5s\n    timeout client 30s\n"
            f"    timeout server 30s\nfrontend http_frontend\n    bind 127.0.0.1:{port}\n"
            "    use_backend behind\nbackend behind\n"
            f"    server one 127.0.0.1:{behind.getsockname()[1]}\n"
        )
        process = subprocess.Popen([write_haproxy_wrapper(tmp_path), "-db", "-f", config])
        try:
            yield port, heard
        finally:
            process.terminate()
            process.wait()
            behind.shutdown(socket.SHUT_RDWR)


def ask(port: int, request: bytes) -> tuple[int, bytes, bytes]:
    """Status, headers and body of the answer; waits for HAProxy to listen."""
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            continue
        break
    with connection:
        connection.settimeout(60)
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    headers, _, body = answer.partition(b"\r\n\r\n")
    return int(headers.split()[1]), headers.lower(), body


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"FOO /v1/models", 405),
        (b"get /v1/models", 405),
        (b"CONNECT a:80", 405),
        (b"OPTIONS *", 404),
        (b"POST /v1/models", 400),
    ],
)
def test_what_would_be_refused_in_plain_text_has_the_shape_of_an_error(
    tmp_path: Path, line: bytes, status: int
) -> None:
    request = line + b" HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    with proxy(tmp_path, UVICORN_400) as (port, _):
        answered, headers, body = ask(port, request)
    assert answered == status
    assert b"content-type: application/json" in headers
    assert json.loads(body)["error"]["message"]
    assert (b"allow: get, head, post" in headers) == (status == 405)


def test_offer_of_another_protocol_is_not_passed_on(tmp_path: Path) -> None:
    request = (
        b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: upgrade, close\r\n"
        b"upgrade: websocket\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with proxy(tmp_path, b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n") as (port, heard):
        assert ask(port, request)[0] == 204
    assert b"websocket" not in heard[0].split(b"sec-websocket")[0].lower()
