"""The script that Serve starts as HAProxy; the real binary judges what it makes of a config."""

from __future__ import annotations

import subprocess
from pathlib import Path

from orchestrator.actors.haproxy import write_haproxy_wrapper

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
