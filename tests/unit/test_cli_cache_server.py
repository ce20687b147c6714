from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli import redis_server
from shoal.cli.cache_server import (
    cache_command,
    cache_url,
    choose_cache_port,
    last_cache_port,
    prepare_acl,
)
from shoal.cli.launches import UpOptions, cache_speaks_tls, orchestrator_launch
from shoal.home import Home


def a_home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.make_private_dirs()
    return home


def test_the_port_is_kept_over_restarts(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    assert last_cache_port(home) is None
    port = choose_cache_port(home)
    assert choose_cache_port(home) == last_cache_port(home) == port


def test_devices_survive_in_the_acl_and_nobody_else_does(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    path = prepare_acl(home)
    password = home.cache_admin_file.read_text()
    device = "user device-1 on #00 resetchannels ~shoal:kv:* -@all +get"
    path.write_text(path.read_text() + device + "\nuser default on nopass ~* +@all\n")
    lines = prepare_acl(home).read_text().splitlines()
    assert lines[0] == "user default off"
    assert lines[1].startswith("user shoal-admin on #")
    assert lines[2:] == [device]
    assert home.cache_admin_file.read_text() == password
    assert password not in path.read_text()


def test_secrets_are_for_this_user_only(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    acl = prepare_acl(home)
    modes = [path.stat().st_mode & 0o777 for path in (acl, home.cache_admin_file)]
    assert modes == [0o600, 0o600]


def test_beyond_this_machine_it_speaks_tls_and_nothing_else(tmp_path: Path) -> None:
    home, binary = a_home(tmp_path), Path("/usr/bin/redis-server")
    plain = " ".join(cache_command(home, binary, 7000))
    assert "--port 7000 --bind 127.0.0.1 --aclfile" in plain
    assert "tls" not in plain
    tls = " ".join(cache_command(home, binary, 7000, "10.0.0.5"))
    assert "--port 0 --tls-port 7000" in tls
    assert "--bind 127.0.0.1 10.0.0.5 --aclfile" in tls
    everywhere = " ".join(cache_command(home, binary, 7000, "0.0.0.0"))
    assert "--bind 0.0.0.0 --aclfile" in everywhere
    assert cache_url(7000) == "redis://127.0.0.1:7000"
    assert cache_url(7000, "hub.example") == "rediss://hub.example:7000"
    assert cache_url(7000, "fd00::1") == "rediss://[fd00::1]:7000"


@pytest.mark.parametrize(
    ("host", "advertise", "build", "expected"),
    [
        ("127.0.0.1", "", b"tls-cert-file", False),
        ("0.0.0.0", "10.0.0.5", b"tls-cert-file", True),
        ("10.0.0.5", "", b"tls-cert-file", True),
        ("10.0.0.5", "", b"without", False),
    ],
)
def test_tls_is_for_fleets_with_other_machines_and_a_redis_that_has_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    advertise: str,
    build: bytes,
    expected: bool,
) -> None:
    binary = tmp_path / "redis-server"
    binary.write_bytes(b"ELF\0maxmemory\0" + build)
    monkeypatch.setattr(redis_server, "find_redis_binary", lambda: binary)
    options = UpOptions(8421, 1, host=host, advertise=advertise)
    assert cache_speaks_tls(options) is expected
    command = orchestrator_launch(a_home(tmp_path), options, 7000).command
    url = command[command.index("--cache-url") + 1]
    assert url == ("rediss://10.0.0.5:7000" if expected else "redis://127.0.0.1:7000")
